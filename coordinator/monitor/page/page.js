"use strict";
// Loads the page again while it is looked at, and puts the new content in place of the old: what is open or has the focus keeps it.
const page = document.getElementById("page");
const gone = document.getElementById("gone");
const orders = document.getElementById("orders");
const all = (what, within = page) => [...within.querySelectorAll(what)];
function local(root) {
  // Sweden writes times as ISO 8601 does.
  for (const one of all("time", root)) {
    const text = new Date(one.dateTime).toLocaleString("sv-SE");
    one.textContent = { full: text, day: text.slice(5, 16), hour: text.slice(11, 16) }[one.dataset.form];
  }
}
async function refresh() {
  if (document.hidden || String(getSelection())) return;
  try {
    const answer = await fetch(location.pathname + location.search, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("page");
    local(found);
    const opened = all("details").map((one) => one.open);
    const { tagName } = document.activeElement, focused = all(tagName).indexOf(document.activeElement);
    page.replaceChildren(...found.childNodes);
    all("details").forEach((one, at) => { one.open = Boolean(opened[at]); });
    all(tagName)[focused]?.focus({ preventScroll: true });
    gone.hidden = true;
  } catch {
    if (gone.hidden) gone.querySelector("span").textContent = new Date().toLocaleTimeString();
    gone.hidden = false;
  }
}
// Reads all charts at one moment: where the pointer is, or where the arrow keys have gone.
function read(at) {
  for (const chart of all("figure")) {
    const found = at && chart.querySelector(`.reading[data-at="${at}"] title`);
    const output = chart.querySelector("output");
    output.textContent = found ? found.textContent : at ? "" : output.dataset.latest;
  }
}
document.addEventListener("pointerover", (event) => {
  const found = event.target.closest?.(".reading");
  if (found || !event.target.closest?.(".charts")) read(found?.dataset.at);
});
page.addEventListener("focusout", () => read());
page.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || event.target.tagName !== "FIGURE") return;
  event.preventDefault();
  const known = all(".reading", event.target).map((one) => one.dataset.at).sort();
  const now = known.indexOf(event.target.dataset.read);
  event.target.dataset.read = known[now < 0 ? known.length - 1 : Math.min(Math.max(now + step, 0), known.length - 1)];
  read(event.target.dataset.read);
});
// Orders something once it is confirmed. The token goes with it, so that a page of elsewhere can order nothing.
async function order(form) {
  const ask = document.getElementById("ask"), outcome = document.getElementById("outcome");
  const body = {};
  for (const one of all("input, select", form)) {
    if (one.value) body[one.name] = one.type === "number" ? Number(one.value) : one.value;
  }
  const named = Object.values(body).join(", ");
  document.getElementById("asked").textContent = form.dataset.asks + (named && ` (${named})`);
  ask.returnValue = "";
  ask.showModal();
  await new Promise((ended) => { ask.onclose = ended; });
  if (!ask.returnValue) return;
  outcome.textContent = "It is being done …";
  const buttons = all("form button", orders);
  buttons.forEach((one) => { one.disabled = true; });
  try {
    const answer = await fetch(`${orders.dataset.base}/api/v1/${form.dataset.path}`, {
      method: "POST", body: JSON.stringify(body),
      headers: { "Authorization": `Bearer ${document.getElementById("token").value}`, "Content-Type": "application/json" },
    });
    const text = await answer.text();
    const told = answer.headers.get("Content-Type") === "application/json" ? JSON.parse(text) : { error: text };
    outcome.textContent = told.error ? `✗ ${told.error}` : `✓ ${told.says ?? `${told.kind} ${told.id} is complete: ${told.uri}`}`;
  } catch (error) {
    outcome.textContent = `✗ the driver has not answered: ${error.message}`;
  }
  buttons.forEach((one) => { one.disabled = false; });
  refresh();
}
orders?.addEventListener("submit", (event) => { event.preventDefault(); order(event.target); });
orders?.addEventListener("click", (event) => {
  if (event.target.closest("dialog") && event.target.tagName === "BUTTON") document.getElementById("ask").close(event.target.value);
});
local(document);
setInterval(refresh, 1000 * Number(page.dataset.seconds));
