# Two commands: `make lab` sets up a small fleet on this machine and runs the main job; `make test` proves the project.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export MUSTER_REPOSITORY := $(CURDIR)
ROLES := $(sort $(patsubst roles/%/molecule/default/molecule.yml,%,$(wildcard roles/*/molecule/default/molecule.yml)))

.PHONY: help setup lab lab-down check test molecule unit integration bench docs lock

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup:
	@tools/setup.sh

lab: setup ## Start a small fleet on this machine and run site.yml on it
	@python -m tests.lab.fleet

lab-down: setup ## Remove the lab: hosts, network, disks, state
	@python -m tests.lab down

check: setup ## The fast loop: lint, types, unit tests (3 minutes)
	@tools/check.sh

unit: setup ## Unit tests alone
	@pytest -q -n 2 tests/unit

molecule: setup ## Molecule for every role, or one: make molecule ROLE=etcd
	@tools/molecule.sh $(if $(ROLE),$(ROLE),$(ROLES))

test: setup ## Prove the project: check, molecule of every role, the lab end to end with attacks (40 minutes)
	@python tools/prove.py

docs: setup ## Write the roles' READMEs and docs/reference from the specs
	@python tools/docs.py

bench: setup ## Print the times of a cold lab and of a second run
	@python -m tests.bench.lab

lock: setup ## Renew the lock files of the Python requirements
	@pip-compile -q --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --extra controller --extra dev -o requirements/controller.txt pyproject.toml
	@pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links -o requirements/node.txt pyproject.toml
