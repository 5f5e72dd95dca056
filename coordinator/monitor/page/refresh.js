"use strict";
// Loads the page again while it is looked at, and puts the new content in place of the old: what is open or has the focus keeps it.
const page = document.getElementById("page");
const gone = document.getElementById("gone");
const all = (what) => [...page.querySelectorAll(what)];
async function refresh() {
  if (document.hidden || String(getSelection())) return;
  try {
    const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("page");
    const opened = all("details").map((one) => one.open);
    const scrolled = all(".wide").map((one) => one.scrollLeft);
    const focused = all("a, summary, [tabindex]").indexOf(document.activeElement);
    page.replaceChildren(...found.childNodes);
    all("details").forEach((one, at) => { one.open = Boolean(opened[at]); });
    all(".wide").forEach((one, at) => { one.scrollLeft = scrolled[at] ?? 0; });
    all("a, summary, [tabindex]")[focused]?.focus({ preventScroll: true });
    gone.hidden = true;
  } catch {
    if (gone.hidden) gone.querySelector("span").textContent = new Date().toLocaleTimeString();
    gone.hidden = false;
  }
}
setInterval(refresh, 1000 * Number(page.dataset.seconds));
