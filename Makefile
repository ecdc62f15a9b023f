# Recipes for people and CI alike; `make help` lists them.
SHELL := /bin/bash
PYTHON ?=
BIN := .venv/bin
# Tests are compiled once, and not anew by every run, whatever the surroundings say; and not beside the sources.
# In CI one to three tests that fail run once more by themselves (.ci/twice).
PYTEST := env PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/.cache/bytecode $(if $(CI),$(CURDIR)/.ci/twice )$(BIN)/python -m pytest
# Most tests wait for something most of the time: three at once are not too many for two cores. JOBS=0: one by one, here.
JOBS ?= 3
AT_ONCE := -n $(JOBS) --dist loadfile
# Tests of milliseconds: each process imports and collects its share of the files alone (tests/support/shares.py).
SHARED_OUT := -n $(JOBS) --dist each --max-worker-restart 0
# What waits for servers, two more: a test goes to whoever is free (tests/conftest.py says which stay together).
ANYWHERE := -n $(if $(filter 0,$(JOBS)),0,$(shell expr $(JOBS) + 2)) --dist loadgroup
# What finds most for its time.
OFTEN := -m "not soak and not thorough"

.DEFAULT_GOAL := help
.PHONY: help install kernel map docs docs-serve sbom demo demo-restore test compile-tests test-unit test-node test-process test-clients test-three test-million test-cluster test-browser health-matrix test-mixed console-shots docs-commands judges matrix test-localstack test-package image-try deploy-check local-cloud test-infra test-infra-often test-thorough mutants spark test-spark test-spark-often wheel package lint format soak soak-replicas fuzz sim sim-secured sim-transactions sim-cuts sim-rewrites sim-sweep sim-restore sim-plant bench bench-cleaning bench-cluster bench-cold bench-crowd bench-groups bench-latency bench-offload bench-page bench-partitions bench-readiness bench-refusals bench-replicas bench-restart bench-restore bench-scale bench-sessions bench-spark bench-transactions fetch-tools fetch-infra clean

help: ## List every recipe
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

ifneq ($(PYTHON),)
.PHONY: .venv/.installed
endif
.venv/.installed: pyproject.toml setup.py .ci/install .ci/build-kernel .ci/find-python .ci/constraints.txt
	@.ci/install $(PYTHON)

.venv/.kernel: .venv/.installed $(wildcard service/records/*kernel.p* service/records/column_buffers.p*)
	@.ci/build-kernel

install: .venv/.installed .venv/.kernel ## Make .venv with everything in it (PYTHON=python3.12 to choose one of 3.11 to 3.13)

kernel: .venv/.installed ## Build the per-record kernel again
	@.ci/build-kernel --again

demo: install ## Two minutes: produce real data, watch it settle into S3, read it all back (STAY=1 leaves it up, with addresses)
	@STAY="$(STAY)" $(BIN)/python -m demo

demo-restore: install ## Three nodes under load lose all their disks and come back from the bucket; the same clients go on
	@$(BIN)/python -m bench.disasters --story --disasters 1 --between 30 --partitions 40 --rate 5

test: install ## The tests, in 25 minutes on two cores: the pure ones first, then histories, then crashes and real clients (JOBS=n at once)
	$(PYTEST) $(SHARED_OUT) tests/test_*.py tests/unit tests/golden $(OFTEN)
	$(PYTEST) -n $(JOBS) --dist worksteal tests/property tests/simulation $(OFTEN)
	$(PYTEST) $(ANYWHERE) tests/mixed tests/cluster tests/process tests/clients tests/contract tests/node $(OFTEN)
	$(PYTEST) $(AT_ONCE) tests/browser

compile-tests: install ## Compile all tests once, as a clean clone has to: processes that begin together each do it for themselves
	@mkdir -p .cache && $(PYTEST) --collect-only -q tests >.cache/collected || { cat .cache/collected; exit 1; }

test-thorough: install ## What `make test` leaves out, as it takes long for what it finds
	$(PYTEST) $(ANYWHERE) tests/mixed tests/cluster tests/process tests/clients tests/node tests/unit tests/property tests/simulation -m thorough

test-unit: install ## Unit and golden tests (about two minutes on two cores)
	$(PYTEST) $(SHARED_OUT) tests/test_*.py tests/unit tests/golden $(OFTEN)

test-node: install ## Whole nodes, servers and log managers inside the tests' own process (half a minute)
	$(PYTEST) $(ANYWHERE) tests/node

test-process: install ## What takes processes of their own: the command, the compiler, Apache Kafka's own dump tool
	$(PYTEST) $(ANYWHERE) tests/process

ROOMS ?= service/hot service/replication service/tiering service/metadata/raft
BUDGET ?= 150
mutants: install ## Small changes of the code that no test notices, in a sample of BUDGET a room (SEED=n ROOMS="service/hot/log.py" of pure modules or files; MUTANT=path:line:nth one of them again)
	env PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/.cache/bytecode $(BIN)/python -m tests.mutants $(if $(MUTANT),--mutant $(MUTANT),$(ROOMS)) --seed $(SEED) --budget $(BUDGET) $(MUTANTS)

NODES ?= 1
REPLICAS ?= 1
test-clients: install ## Ordinary Kafka clients and Apache Kafka's own tools against one node (NODES=3: against a cluster of three; DEV=3: against `firn dev --nodes 3`; REPLICAS=3: with so many replicas)
	FIRN_TEST_NODES=$(NODES) FIRN_TEST_DEV=$(DEV) FIRN_TEST_REPLICAS=$(REPLICAS) $(PYTEST) $(ANYWHERE) tests/clients

# What several nodes change most for clients: groups and their coordinators. Each worker has a cluster of its own, so there are two.
THREE := assignors groups doubled_static_ids
test-three: install ## A part of test-clients against three nodes with three replicas of each partition (a minute and a half)
	FIRN_TEST_NODES=3 FIRN_TEST_REPLICAS=3 $(PYTEST) -n 2 --dist loadgroup $(THREE:%=tests/clients/test_%.py) $(OFTEN)

test-million: install ## kafka-producer-perf-test and its like with a million records
	FIRN_TEST_RECORDS=1000000 $(PYTEST) tests/clients/test_perf_tools.py

test-cluster: install ## Bad input, kill -9 and a failing object store against one node
	$(PYTEST) $(ANYWHERE) tests/cluster -m "not soak"

health-matrix: install ## What /readyz, describe, console, metrics and alerts say of each dead thing, and how soon: a table (four minutes)
	$(PYTEST) -s tests/cluster/test_health_matrix.py

test-mixed: install ## Firn and Apache Kafka as one cluster: leadership wanders 20 times, voters come and go, records are compared, brokers of both have replicas of the same partitions (twenty minutes)
	$(PYTEST) tests/mixed -s

JUDGES ?= librdkafka franz-go kafka-python
AGAINST ?= firn
judges: install fetch-tools ## Secured suites of other projects' clients: librdkafka, franz-go, kafka-python (JUDGES="kafka-python" AGAINST="kafka firn"; docs/judges.md)
	$(BIN)/python -m tests.judges $(JUDGES) --against $(AGAINST)

docs-commands: install fetch-tools ## Every command of README and docs: what is run, checked or neither, and why; then run them all (ten minutes; those of Spark after `make spark`)
	@$(BIN)/python -m tests.support.doc_judging
	$(PYTEST) -rs tests/test_docs.py tests/process/test_docs_commands.py

matrix: install fetch-tools ## Three clients and Kafka's tools over every protocol and mechanism, right and wrong: what Firn tells them, beside Apache Kafka (ten minutes)
	$(BIN)/python -m tests.judges.matrix
	$(BIN)/python -m tests.judges.tools

test-browser: install ## The console in a real Chromium (apt-get install chromium-headless-shell)
	$(PYTEST) $(AT_ONCE) tests/browser

console-shots: install ## Screenshots of the console for docs/ and README, of a node that this starts and fills
	@$(BIN)/python -m tests.browser.shots

test-localstack: install ## The object-store contract, and clients over both tiers, against LocalStack; and localstack/up itself
	@localstack/run $(PYTEST) tests/contract tests/clients/test_read_back.py -k "localstack or test_read_back"
	$(PYTEST) tests/process/test_local_cloud.py

.cache/infra/package/.complete: .venv/.kernel .ci/package .ci/wheel pyproject.toml $(shell find service pyspark_firn -name '*.py' 2>/dev/null)
	@rm -rf .cache/infra/package && .ci/package .cache/infra/package && touch $@

test-infra: install fetch-infra .cache/infra/package/.complete ## Terraform on plans and on moto, checkov, machines that boot (root, for these)
	@.ci/test-infra $(PYTEST)

test-infra-often: install .cache/infra/package/.complete ## Terraform on plans, checkov, machines that boot and form a cluster: the part of test-infra that finds most
	@.ci/fetch-infra terraform standin checkov debian
	$(PYTEST) -n 3 --dist loadfile tests/infra $(OFTEN)

.venv/.spark: .venv/.installed .ci/install-spark tests/java/spark-connector/pom.xml
	@.ci/install-spark

spark: install .venv/.spark ## Add Spark to .venv (500 MB; no Java needed), and its Kafka connector to compare with

test-spark: spark ## The archive as a DataFrame, on a real Spark, beside Kafka consumers and Spark's own Kafka connector
	@.ci/install-spark --iceberg --examples
	$(PYTEST) $(SPARK_UNIT) tests/spark -m "not soak"

# The files that find most for their time; continuous integration runs these.
SPARK_UNIT := tests/unit/spark tests/unit/pipelines tests/unit/tiering/test_chain_proof.py tests/property/spark
SPARK_OFTEN := batch_read reused_frames fixed_frames streaming stream_topics tail_client store_away sink archive_admission pipelines
test-spark-often: spark ## The part of test-spark that finds most, in about six minutes
	$(PYTEST) -n 2 --dist loadfile $(SPARK_UNIT) $(SPARK_OFTEN:%=tests/spark/test_%.py) $(OFTEN) -k "not goes_on_when_the_store_is_back"

wheel: install ## sdist, and this platform's wheel with compiled kernels, in dist/; for any Linux where auditwheel can be had
	@.ci/wheel

test-package: install ## sdist and wheels built, installed into empty environments and run, on Python 3.11 and 3.13
	$(PYTEST) -n 2 --dist loadgroup tests/package

image-try: install ## Build the image without Docker and boot three nodes of it (root, buildah, debootstrap; docs/containers.md; TRY="--no-build")
	@deploy/try-image $(TRY)

deploy-check: install ## Dockerfile, compose file and chart judged by hadolint, docker compose, helm and Kubernetes' schemas (Go; ten minutes the first time)
	@.ci/fetch-deploy
	@deploy/check
	$(PYTEST) tests/process/test_containers.py tests/process/test_image_forming.py

local-cloud: install ## LocalStack, a bucket as recommended and a node, on this machine; localstack/down ends it
	@localstack/up

package: install ## What a machine installs without an index: a tar of wheels in dist/, and its SHA-256
	@.ci/package

lint: install ## ruff (format and lint), mypy --strict, import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

map: install ## Print every file of service/, room by room, with what it says of itself
	@$(BIN)/python -m tests.test_tidy

.venv/.docs: .venv/.installed pyproject.toml
	@.ci/install-docs

docs: install .venv/.docs ## docs/ as a site in build/docs; a link, an anchor or a page that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

docs-serve: install .venv/.docs ## The site on http://127.0.0.1:8000, built anew as you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --no-strict

sbom: install ## What the wheel is installed with, as CycloneDX JSON in dist/ (EXTRAS=console,security)
	@.ci/sbom $(EXTRAS)

format: install ## Format and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: install ## Minutes of kills and a failing object store, and killed Spark jobs where Spark is (SOAK_SECONDS=600, SEED=n)
	$(PYTEST) tests/cluster -m soak -s --timeout=0
	@if $(BIN)/python -c 'import pyspark' 2>/dev/null; then set -x; $(PYTEST) tests/spark -m soak -s --timeout=0; \
	else echo "firn: Spark is not installed, so no job of its is killed; make spark adds it"; fi

STORMS := storms moves harms stores
soak-replicas: install ## Storms over nodes that have replicas of each other: kills, moves, links, racks, disks, stores (SECONDS=600 or KILLS=500, NODES=5, SEED=n, STORMS="moves stores"); stalls by kill -9, rolling restarts
	env $(if $(SECONDS),SECONDS_OF_STORM=$(SECONDS)) $(PYTEST) $(STORMS:%=tests/cluster/test_replica_%.py) -m soak -s --timeout=0 $(if $(SECONDS)$(KILLS),-k storm_loses)

SEED ?= 1
HISTORIES ?= 3000
SIM_LIMITS = $(if $(filter file,$(origin JOBS)),,--jobs $(JOBS)) $(if $(MINUTES),--minutes $(MINUTES))
sim: install ## Histories of one node in a world where everything fails (SEED=n HISTORIES=m; one replays a failure; WORLD=cluster: of 3 and 5 nodes; WORLD=machines: Raft alone)
	$(BIN)/python -m simulator$(if $(WORLD),.$(WORLD)) --seed $(SEED) --histories $(HISTORIES) $(SIM)

FUZZ_FRAMES ?= 1000000
fuzz: install ## A million damaged frames to both listeners of three nodes, and as many to the codecs, hostile batches to erasures and key filters (FUZZ_FRAMES=n SEED=n; half an hour)
	$(BIN)/python -m tests.property.wire.test_fuzzed_controllers $(FUZZ_FRAMES) $(SEED)
	$(BIN)/python -m tests.property.records.test_hostile_copies $$(( $(FUZZ_FRAMES) / 10 )) $(SEED)
	FUZZ_FRAMES=$(FUZZ_FRAMES) SEED=$(SEED) $(PYTEST) tests/cluster/test_fuzzed_nodes.py -s

sim-secured: install ## Clusters with TLS, logins and an authorizer: rights and passwords come and go amid faults, nobody is served by one that is gone (SEED=n HISTORIES=m; SIM=--plants)
	$(BIN)/python -m simulator.cluster --secured --seed $(SEED) --histories $(HISTORIES) $(SIM)

sim-transactions: install ## Clusters with groups and transactions: coordinators and leaders die between any two steps (SEED=n HISTORIES=m; SIM=--plants)
	$(BIN)/python -m simulator.cluster --transactions --seed $(SEED) --histories $(HISTORIES) $(SIM)

sim-cuts: install ## Clusters that take cuts amid faults, and lose everything but the bucket: heirs of 1, 3 and 5 nodes come back from any cut (SEED=n HISTORIES=m JOBS=2 MINUTES=60; SIM=--plants)
	$(BIN)/python -m simulator.cluster --cuts --seed $(SEED) --histories $(HISTORIES) $(SIM_LIMITS) $(SIM)

sim-rewrites: install ## Clusters whose segments are merged, and from which keys are erased, amid faults, disks of before and the loss of everything (SEED=n HISTORIES=m JOBS=2 MINUTES=60; SIM=--plants)
	$(BIN)/python -m simulator.cluster --rewrites --seed $(SEED) --histories $(HISTORIES) $(SIM_LIMITS) $(SIM)

sim-sweep: install ## Every call of disk and store fails in every way, every kind of file and object rots (SWEEP="--every 10")
	$(BIN)/python -m simulator.sweep $(SWEEP)
	$(if $(SWEEP),,$(BIN)/python -m simulator.rewrite_sweep)

sim-restore: install ## A node's disk is lost in forty ways, a new one takes the bucket over: is all read back a month on? (RESTORE="--nodes 3", --plants)
	$(BIN)/python -m simulator.restore $(RESTORE)

sim-plant: install ## Known defects put back one at a time, those of transactions, too: how many histories each takes to be found, of its budget (WORLD=transactions: those alone)
	$(if $(WORLD),,$(BIN)/python -m simulator.plant $(PLANT))
	$(if $(PLANT),,$(BIN)/python -m simulator.cluster --transactions --plants)

bench: install ## Memory, start-up, CPU per request and per GB, beside Apache Kafka where its jars are (BENCH=--kafka)
	@$(BIN)/python -m bench $(BENCH)

bench-cold: install ## Cold reads beside raw GETs of one store, memory with 64 readers, round trips (BENCH="rate --kafka --rounds 5")
	@$(BIN)/python -m bench.cold $(BENCH)

bench-cleaning: install ## Compaction of 10 million records over a million keys: exact, memory, beside Apache Kafka's (BENCH=--kafka)
	@$(BIN)/python -m bench.cleaning $(BENCH)

bench-crowd: install ## 1, 10 and 100 clients that ask for as much as they may: turns of the loop, an innocent's waits, memory (BENCH="--only waits --check")
	@$(BIN)/python -m bench.crowd $(BENCH)

bench-scale: install ## One node and two on this machine, clients aside: rates, CPU, what 8 and 16 cores would do (five minutes; BENCH="small --rounds 5")
	@$(BIN)/python -m bench.scale $(BENCH)

bench-sessions: install ## CPU and memory of a consumer of 5,000 partitions, and of 5,000 idle connections (three minutes)
	@$(BIN)/python -m bench.sessions $(BENCH)

bench-cluster: install ## Three nodes: start, idle, a killed controller, 100,000 partitions caught up with (BENCH="idle failover --kafka")
	@$(BIN)/python -m bench.cluster $(BENCH)

bench-groups: install ## Groups: commits, a million positions, 500 members, assignors, compaction (BENCH="commits --kafka")
	@$(BIN)/python -m bench.groups $(BENCH)

bench-transactions: install ## Transactions, row by row, beside Apache Kafka (BENCH="rate-1 latency --kafka"; copies while nodes die: python -m bench.exactly_once)
	@$(BIN)/python -m bench.transactions $(BENCH)

bench-latency: install ## An innocent client at 1,000 requests/s beside each nasty thing (BENCH="--only roll --check")
	@$(BIN)/python -m bench.latency $(BENCH)

bench-page: spark ## All benches beside Apache Kafka, one page with charts in docs/benchmarks (two hours; BENCH=--quick: a part of them, in a quarter of an hour; BENCH="nothing mixed": soaks, 45 minutes; Java, and versitygw, from make fetch-tools)
	@$(BIN)/python -m bench.page $(BENCH)

bench-partitions: install ## 10,000 partitions: made, written round robin, left alone, stopped, started, killed and started (two minutes; BENCH="--kafka --partitions 10 1000")
	@$(BIN)/python -m bench.partitions $(BENCH)

bench-replicas: install ## Three nodes with replicas of each other: speed, latency, idle, stalls when one dies, catching up (BENCH="latency stall --kafka --kills 5")
	@$(BIN)/python -m bench.replicas $(BENCH)

bench-readiness: install ## Price of cuts, by turns on and off: rates, times, CPU, bytes that go up, PUTs (half an hour; BENCH="paced --rounds 5")
	@$(BIN)/python -m bench.readiness $(BENCH)

bench-refusals: install ## Topics beside others whose objects the store refuses: copied, read, expired (two minutes; BENCH=--check)
	@$(BIN)/python -m bench.refusals $(BENCH)

bench-restart: install ## Starts after kill -9: 5 GB flushed, 1 GB of single-record batches to recover (a minute)
	@$(BIN)/python -m bench.restart $(BENCH)

bench-restore: install ## A restore of 1,000 partitions with 1,000 and with 100,000 segments, in versitygw: plan, apply, ready (four minutes; BENCH="--rounds 1")
	@$(BIN)/python -m bench.restoring $(BENCH)

bench-spark: spark ## Planning of 100,000 segments; rows per second beside Spark's Kafka connector, hot partition, tail (ten minutes)
	@$(BIN)/python -m bench.planning
	@$(BIN)/python -m bench.spark $(BENCH)

bench-offload: install ## Offload beside raw PUTs of the same store, requests and manifests for each segment (two minutes; BENCH=--kafka)
	@$(BIN)/python -m bench.offload $(BENCH)

fetch-tools: ## Fetch versitygw, promtool, Apache Kafka's tools, Streams and Connect into .cache (needs Go, Java 17 and Maven)
	@.ci/fetch-tools

fetch-infra: ## Fetch and build into .cache what test-infra needs (Go; root for the Debian tree; five minutes, once)
	@.ci/fetch-infra

clean: ## Remove what was built; .cache stays
	rm -rf .venv build dist *.egg-info service/records/*.so service/records/*.c
	find service simulator tests bench demo -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
