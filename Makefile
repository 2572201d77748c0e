# make study   set up, run the small study, write its report
# make test    set up, run all tests
PYTHON ?= python3
VENV := $(or $(HVDKAN_VENV),.venv)
RUN := PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/python
PLAN ?= jobs/plans/quick.toml

.PHONY: study test setup lint bench rehearsal

study: setup
	$(RUN) -m jobs.study $(PLAN)

test: setup
	$(RUN) -m pytest

setup:
	@$(PYTHON) -m jobs.environment

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

# A real Slurm over emulated nodes, to try job lines on one machine; down: make rehearsal DO=down
rehearsal: setup
	$(RUN) -m jobs.rehearsal $(or $(DO),up)

bench: setup
	$(RUN) -m tests.hvdkan.bench_step
	$(RUN) -m tests.analysis.bench_report
	$(RUN) -m tests.jobs.bench_study
