# Two commands: `make lab` sets up a small fleet on this machine and runs the main job; `make test` proves the project.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export MUSTER_REPOSITORY := $(CURDIR)
# The tests start Python a thousand times: what it has compiled is kept.
unexport PYTHONDONTWRITEBYTECODE
ROLES := $(sort $(patsubst roles/%/molecule/default/molecule.yml,%,$(wildcard roles/*/molecule/default/molecule.yml)))

.PHONY: help setup lab lab-down check test molecule unit campaign integration bench bench-engine collection docs lock

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup:
	@tools/setup.sh

lab: setup ## Start a small fleet on this machine and run site.yml on it
	@python -m tests.lab.fleet

lab-down: setup ## Remove the lab: hosts, network, disks, state
	@python -m tests.lab down

check: setup ## The fast loop: lint, types, unit tests but for the slow ones (2.5 minutes)
	@tools/check.sh

unit: setup ## All unit tests, the slow ones too
	@pytest -q -n 3 tests/unit

campaign: setup ## The fault campaign of the burn-in: every fault seen, no healthy run failed; prints the matrix (5 minutes)
	@python -m tests.campaign $(if $(SEED),--seed $(SEED))

molecule: setup ## Molecule for every role, or one: make molecule ROLE=etcd
	@python tools/molecule.py $(if $(ROLE),$(ROLE),$(ROLES))

test: setup ## Prove the project: check, campaign, molecule of every role, the lab end to end with attacks (35 minutes)
	@python tools/prove.py

collection: setup ## Build the collection muster.fleet, roles and playbooks too, as build/muster-fleet-VERSION.tar.gz
	@python tools/collection.py

docs: setup ## Write the roles' READMEs and docs/reference from the specs
	@python -m tools.docs

bench: setup ## Print the times of a cold lab and of a second run
	@python -m tests.bench.lab

bench-engine: setup ## Print what exact verification and the burn-in's machinery cost
	@python -m tests.bench.engine

lock: setup ## Renew the lock files of the Python requirements
	@pip-compile -q --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --extra controller --extra dev -o requirements/controller.txt pyproject.toml
	@pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links -o requirements/node.txt pyproject.toml
	@for cuda in 12 13; do pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links -c requirements/node.txt --extra cuda$$cuda -o requirements/node-cuda$$cuda.txt pyproject.toml || exit; done
