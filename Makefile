# Everything that a fresh clone needs: `make demo` runs the main job, `make test` passes the tests.
# Each makes .venv and installs the project from its own files. Needs Python 3.11+ and Java 17+.

PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -m
STAMP := .venv/.installed
# Classes of Spark, with which the Java processes of tests start in less time.
CLASSES := .venv/classes.jsa
# The older versions of PySpark that Chandy runs on, each in an environment of its own: the latest 4.1.x and 4.2.x.
OLDER := 4.1 4.2
# Where packages have other names than their folders, setuptools says at every editable installation, in a frame of
# asterisks, that a folder might hide a package. None here can: no folder is named chandy. This one warning alone is off.
UNWARNED := PYTHONWARNINGS='ignore:Editable installation.'

# Some images set it, and then each of the hundreds of processes that tests and demos start compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-kafka demo-cluster demo-upgrade test test-today test-spark test-kills test-migration test-examples \
  test-servers test-cluster simulate test-yarn test-compat test-browser test-all $(OLDER:%=compat-%) unit lint types docs site bench clean

demo: $(STAMP) java
	$(RUN) benchmarks.demo

# The same with Kafka and PostgreSQL, which are killed, too. It starts both; Maven fetches Kafka.
demo-kafka: $(STAMP) java
	$(RUN) benchmarks.kafka_demo

# The same on three machines made on this one: a fourth joins, and one loses its power.
demo-cluster: $(STAMP) java
	$(RUN) benchmarks.cluster_demo

# A new version runs beside the old one: a wrong one is found, and a right one takes over.
demo-upgrade: $(STAMP) java
	$(RUN) benchmarks.upgrade_demo

# Spark wants the machine for itself; what needs neither Spark nor other processes runs on all cores.
test: unit test-spark

# The same with the sample of today instead of the one that every change is tried with.
test-today:
	CHANDY_SEED=$$(date +%Y%m%d) $(MAKE) test

test-spark: $(CLASSES)
	$(RUN) pytest tests/integration tests/state/host tests/coordinator/connectors/test_files.py \
	  tests/coordinator/monitor/test_stored.py tests/test_faces.py \
	  -m "(spark or processes) and not server and not kills and not migration and not examples" \
	  --numprocesses 2 --dist worksteal

# Drivers and state hosts that are killed or frozen again and again. Each test makes its own, so any process takes the next.
test-kills: $(CLASSES)
	$(RUN) pytest tests/integration tests/coordinator/execution tests/state/host tests/test_package.py \
	  -m "kills and not server" --numprocesses 2 --dist worksteal

# Queries of plain Spark that Chandy takes over, and that it gives back.
test-migration: $(CLASSES)
	$(RUN) pytest tests/integration -m "migration and not kills" --numprocesses 2 --dist worksteal

# What a user runs: the examples, the notebook, the quick start, the benchmarks, and the package as it is installed.
test-examples: $(CLASSES)
	$(RUN) pytest tests/integration tests/benchmarks tests/test_package.py -m "examples and not kills" \
	  --numprocesses 2 --dist worksteal

# Stores and the targets of sinks, each on its real server: S3, HDFS, PostgreSQL, Kafka. A file keeps to one process, so
# that each server is started once or twice. Files whose few tests take long come first, so that no process ends alone.
test-servers: $(CLASSES)
	$(RUN) pytest tests/integration tests/coordinator/connectors tests/state/writer tests/storage \
	  -m "server and not yarn" --numprocesses 2 --dist loadfile --no-loadscope-reorder

# A pipeline on YARN: Hadoop's own cluster for tests, with two node managers and an HDFS. Under four minutes.
test-yarn: $(CLASSES)
	$(RUN) pytest tests/yarn -m yarn

# Three machines on this one, in namespaces if it is root that calls, otherwise at addresses of the loopback interface.
test-cluster: $(CLASSES)
	$(RUN) pytest tests/cluster tests/kubernetes tests/integration/test_local_cluster.py -m cluster

# All that `.ci/run` runs, and of what repeats to gather chance not a sample but everything: before a release.
test-all: java
	CHANDY_FULL=1 CHANDY_CI_LIMIT=86400 PYTEST_ADDOPTS='-o faulthandler_timeout=14400' .ci/run

# What depends most on the version of PySpark, and savepoints that go on under another one. Some five minutes a version.
test-compat: java $(OLDER:%=compat-%)

$(OLDER:%=compat-%): compat-%: .venv-pyspark-%/classes.jsa $(CLASSES)
	CHANDY_OTHER_PYTHON=$(CURDIR)/$(BIN)/python \
	  .venv-pyspark-$*/bin/python -m pytest tests/integration tests/coordinator/connectors -m compat --numprocesses 2 --dist loadfile

# Three workers for two processors: a fifth of their time they wait.
unit: $(STAMP)
	$(RUN) pytest -m "not spark and not processes and not server and not cluster and not kills and not browser" \
	  --numprocesses $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )) --dist worksteal \
	  $(foreach folder,integration cluster kubernetes yarn,--ignore tests/$(folder))

# The product in a simulated world, from a seed on, until so many steps are taken or something is found: overnight, say
# `make simulate SEED=1 STEPS=1000000000`. It uses one core.
SEED ?= 0
STEPS ?= 1000000
simulate: $(STAMP)
	$(RUN) tests.world --seed $(SEED) --steps $(STEPS)

# The pages of the driver in a real browser, which no package brings: apt-get install chromium. Writes their pictures.
test-browser: $(STAMP)
	@$(UNWARNED) $(BIN)/python -m pip install --quiet --editable '.[browser]'
	$(RUN) pytest tests/coordinator/monitor/test_browser.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The packages' folders have other names than the packages: mypy is shown them as the folder `chandy`.
types: $(STAMP)
	mkdir -p build/types/chandy
	for part in coordinator barrier state storage; do ln -sfn ../../../$$part build/types/chandy/$$part; done
	for file in __init__.py __init__.pyi testing.py testing.pyi; do ln -sfn ../../../coordinator/face/$$file build/types/chandy/$$file; done
	MYPYPATH=build/types $(BIN)/mypy -p chandy -p benchmarks -p docs -p tests

# The pages that are written from the code. A test fails while they differ from it.
docs: $(STAMP)
	$(RUN) docs.configuration
	$(RUN) docs.lifecycles

# The site, from the pages and the docstrings; its first page is build/site/index.html. A warning fails it.
site: $(STAMP)
	$(RUN) sphinx --quiet --fail-on-warning --fresh-env --jobs 2 -c docs/site -d build/site-pages . build/site
	cp build/site/README.html build/site/index.html

# All benchmarks, with JSON and charts in benchmarks/results; about three hours. One of them: python -m benchmarks NAME.
bench: $(STAMP) java
	$(RUN) benchmarks all

# Makes the environment from the project's own files.
$(STAMP): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed, found $$($(PYTHON) --version). Say PYTHON=... to name another one."; exit 1; }
	@echo "Installing Chandy, PySpark and what the tests need into $(@D); this takes a minute or more."
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --upgrade pip
	@$(UNWARNED) $(@D)/bin/python -m pip install --quiet --editable '.[test,examples,site]'
	@touch $@

# Another version of PySpark, and for all else the packages of .venv: a gigabyte and a minute less than a whole
# environment. What such an environment has of its own is found first.
$(OLDER:%=.venv-pyspark-%/.installed): .venv-pyspark-%/.installed: $(STAMP)
	@echo "Installing PySpark $* into $(@D); this takes a minute."
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages-of-venv.pth
	@$(@D)/bin/python -m pip install --quiet 'pyspark ==$*.*'
	@touch $@

%/classes.jsa: %/.installed | java
	@echo "Writing an archive of Java classes for the tests; this takes half a minute."
	@$(@D)/bin/python -m tests.java

.PHONY: java
java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || { \
	  echo "Java 17 or newer is needed and there is none. On Debian or Ubuntu: apt-get install openjdk-17-jre-headless;"; \
	  echo "on macOS: brew install openjdk@17; or set JAVA_HOME to where it is."; exit 1; }

clean:
	rm -rf .venv .venv-pyspark-* build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse artifacts
