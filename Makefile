# Every target sets up what is missing first (ci/bootstrap says what it installs) and needs no other command before it.
.PHONY: demo verdict test test-quick wheel lint bench torture docs site kips evidence launch durability zoo card gallery machines mutants judge-mutants readings clean bootstrap

BIN := .venv/bin
# Some containers set it; tests then compile every module in each of the processes that they start.
export PYTHONDONTWRITEBYTECODE :=
PACKAGES := -m aftershock.errors -m aftershock.names $(addprefix -p aftershock.,faults harness results workloads)

demo: bootstrap
	$(BIN)/aftershock images --for demo
	$(BIN)/aftershock run demo

# judges a stored run, without a Docker engine: make verdict PACK=FILE
PACK := docs/evidence/packs/demo.pack.zip
verdict:
	@ci/bootstrap --without-engine
	$(BIN)/aftershock verdict $(PACK) --out build/runs; code=$$?; [ $$code -le 1 ] || exit $$code  # a FAIL is a verdict, too

# with an engine, one process runs the folder `chaos` and one `contract`: they wait most of the time; no other folder is collected
# the images are built, or pulled, while tests run that need none: that is mostly waiting for downloads
test: bootstrap
	@$(BIN)/aftershock images --ensure & images=$$!; \
	  echo '$(BIN)/pytest -n 2 --dist loadgroup -m "not engine and not nightly" tests'; \
	  $(BIN)/pytest -n 2 --dist loadgroup -m "not engine and not nightly" tests; tests=$$?; \
	  wait $$images && exit $$tests
	$(BIN)/pytest -n 2 --dist loadgroup -m "engine and not nightly" tests/chaos tests/contract

# pure logic only, with fewer random examples: no Docker engine, no Spark
test-quick: bootstrap
	$(BIN)/pytest -q -n 2 --dist loadgroup --hypothesis-profile quick \
	  -m "not engine and not nightly and not spark and not slow" tests/unit

# a wheel for other projects, in build/wheel (docs/INSTALL.md)
wheel:
	@ci/bootstrap --without-engine
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	@ls build/wheel/*.whl

lint: bootstrap
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.venv/src $(BIN)/mypy --namespace-packages --explicit-package-bases $(PACKAGES)

bench: bootstrap
	@missed=0; for script in tests/bench/*.py; do \
	  echo "== $$script"; $(BIN)/python "$$script" || missed=1; \
	done; exit $$missed

# what the harness itself withstands; writes docs/RELIABILITY.md
torture: bootstrap
	$(BIN)/python -m aftershock.tests.torture.run --minutes $(or $(MINUTES),60)

# the generated pages: fault catalogue, checks and planted defects, commands
docs: bootstrap
	$(BIN)/aftershock plan faults --markdown > docs/FAULTS.md.new && mv docs/FAULTS.md.new docs/FAULTS.md
	$(BIN)/python tests/unit/results/planted/table.py > docs/CHECKS.md.new && mv docs/CHECKS.md.new docs/CHECKS.md
	$(BIN)/python -m aftershock.harness.cli.reference > docs/CLI.md.new && mv docs/CLI.md.new docs/CLI.md

# the documentation as a site in build/site
site: docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -W ignore -m mkdocs build --strict --quiet

# the result tables of the KIPs' trials, and their digest in docs/KIPS.md, from what `aftershock kip` has left under runs/; nothing is run
kips: bootstrap
	$(BIN)/python -m aftershock.harness.campaigns.publish kips runs docs/evidence docs/kips docs/KIPS.md

# the evidence of the KIPs' headline claims, from runs/ into the repository: `aftershock kip 951 --from docs/evidence/kip951`
evidence: bootstrap
	$(BIN)/python -m aftershock.harness.campaigns.publish evidence runs docs/evidence

# the headline's runs of one KIP (KIP=951) in runs/ as a further launch in its evidence
launch: bootstrap
	$(BIN)/python -m aftershock.harness.campaigns.publish launch runs docs/evidence $(KIP)

# the table of power cuts in the docs, and its evidence, from what `aftershock durability` has left under runs/; nothing is run
durability: bootstrap
	$(BIN)/python -m aftershock.harness.campaigns.publish durability runs docs/evidence/durability docs/DURABILITY.md

# the table of the zoo, and its evidence, from what `aftershock zoo all` has left under runs/; nothing is run
zoo: bootstrap
	$(BIN)/python -m aftershock.harness.campaigns.publish zoo docs/evidence/zoo docs/ZOO.md $(wildcard runs)

# runs an audit for the gallery, with its advice tried, and stores its card: make card NAME=kafka-4.3 CLIENTS="java@4.3.1 librdkafka@2.16.0"
card: bootstrap
	$(BIN)/aftershock audit $(foreach client,$(CLIENTS),--client $(client)) --try-advice $(if $(AGAINST),--against $(AGAINST)) \
	  --out runs/gallery/$(NAME); code=$$?; [ $$code -le 2 ] || exit $$code; \
	  $(BIN)/python -m aftershock.harness.campaigns.publish gallery docs/evidence/gallery docs/GALLERY.md README.md $(NAME) runs/gallery/$(NAME)

# the report cards in the docs, from the evidence in the repository; nothing is run
gallery: bootstrap
	$(BIN)/python -m aftershock.harness.campaigns.publish gallery docs/evidence/gallery docs/GALLERY.md README.md

# plants bugs in copies of the clients' rules, one at a time, and shows the test that catches each
mutants: bootstrap
	$(BIN)/python tests/mutants/run.py

# plants random defects in stored runs, counts those that the judge catches, and writes the table in docs/CHECKS.md
judge-mutants: bootstrap
	$(BIN)/python -m aftershock.tests.judge_mutants run --plants $(or $(PLANTS),6000) --minutes $(or $(MINUTES),60); code=$$?; \
	  [ $$code -le 1 ] || exit $$code; $(MAKE) docs; exit $$code

# recounts every SLO figure of the stored runs with DuckDB, and writes the table into the docs
readings: bootstrap
	$(BIN)/python -m aftershock.tests.readings --docs docs/SLO.md

# the tables of sick machines in the docs, from what `aftershock run grey-failures` and `lost-hosts` have left under runs/
machines: bootstrap
	$(BIN)/python -m aftershock.harness.campaigns.publish machines runs docs/evidence/machines docs/MACHINES.md

# evidence (runs/), images and the build logs stay
clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

bootstrap:
	@ci/bootstrap
