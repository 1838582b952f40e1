# Two commands: `make lab` sets up a small fleet on this machine and runs the main job; `make test` proves the project.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export MUSTER_REPOSITORY := $(CURDIR)
# The tests start Python a thousand times: what it has compiled is kept.
unexport PYTHONDONTWRITEBYTECODE
# With it Python reads a module that Ansible sends byte by byte: 37 ms of processor time for each.
unexport PYTHONUNBUFFERED
# A target that another one needs says nothing when there is nothing to do.
QUIET = $(if $(filter $@,$(MAKECMDGOALS)),,--quiet)
# An extra that brings another one (controller: node) names this distribution, which no lock can pin: what pip-compile says of
# that behind the last package goes.
LOCK = pip-compile -q --unsafe-package gpu-burnin --generate-hashes --strip-extras --no-emit-index-url \
	--no-emit-trusted-host --no-emit-find-links $(1) -o requirements/$(2).txt pyproject.toml && sed -i '/^$$/,$$d' requirements/$(2).txt
ROLES := $(sort $(patsubst roles/%/molecule/default/molecule.yml,%,$(wildcard roles/*/molecule/default/molecule.yml)))

.PHONY: help setup setup-dev setup-lab lab lab-down check test soak mutants molecule unit campaign integration driver-debian upgrade-minor lab-operations bench bench-ansible bench-control-plane bench-disk bench-engine bench-events bench-inventory bench-muster bench-admission bench-jobs bench-monitoring bench-scaler collection dist docs lock

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: ## Make this machine a controller: Python environment, SSH client, Ansible collections
	@tools/setup.sh controller $(QUIET)

setup-dev: ## ... and give it what make check needs: compiler, linters, pytest
	@tools/setup.sh dev $(QUIET)

setup-lab: ## ... and what make lab and make test need: podman and the tools to make hosts
	@tools/setup.sh lab $(QUIET)

lab: setup-lab ## Start a small fleet on this machine and run site.yml on it
	@python -m tests.lab.fleet

lab-down: setup-lab ## Remove the lab: hosts, network, disks, state
	@python -m tests.lab down

check: setup-dev ## The fast loop: lint, types, unit tests but for the slow ones (2 minutes); ansible-lint on what changed; BASE=commit adds the slow ones of what changed since
	@BASE=$(BASE) tools/check.sh

unit: setup-dev ## All unit tests, the slow ones too
	@pytest -q -n 2 tests/unit

campaign: setup-dev ## The fault campaign of the burn-in: every fault seen, no healthy run failed; prints the matrix (5 minutes)
	@python -m tests.campaign $(if $(SEED),--seed $(SEED))

molecule: setup-lab ## Molecule for every role, or one: make molecule ROLE=etcd
	@python -m tools.molecule $(if $(ROLE),$(ROLE),$(ROLES))

driver-debian: setup-lab ## Debian's real driver by the role: packages of its archive, modules by DKMS, killed in the middle (5 minutes, the first time 14)
	@python -m tools.molecule nvidia_driver/debian

upgrade-minor: setup-dev ## API servers of Kubernetes 1.35 and 1.36 beside each other on one etcd, as an upgrade over a minor has them (a minute, the first time 10 of building; needs the lab's binaries)
	@python -m tests.lab older
	@pytest -q -rA tests/minor

lab-operations: setup-lab ## On a fleet of the lab, while clients write: parts of the control plane die, etcd is restored, a member, all CAs and the encryption key are replaced (30 minutes)
	@pytest -v tests/integration/on_demand

test: setup-lab ## Prove the project: each kind of proof once, on a budget of CPU seconds (50 minutes on two cores; docs/reference/proof.md)
	@python -m tools.prove

soak: setup-lab ## What repeats a proof: every draw, scenario and alert, outages, rotations, 20 kills (hours); SEED=20261126 repeats that day's
	@python -m tools.soak $(if $(SEED),--seed $(SEED))

mutants: setup-lab ## Break ten things of the product, one at a time: the tests must see each (some minutes; make soak does it too)
	@python -m tools.mutants

collection: setup ## Build the collection muster.fleet, roles and playbooks too, as build/muster-fleet-VERSION.tar.gz
	@python tools/collection.py

dist: setup-dev ## Build a release of HEAD in build/dist, the same bytes each time: packages, image, .deb, bill of materials, sums that KEY=, your SSH key, signs (CUDA=none: without its libraries; docs/operations/install.md)
	@python -m tools.dist build $(if $(KEY),--key $(KEY)) $(foreach cuda,$(CUDA),--cuda $(cuda))

docs: setup-dev ## Write the roles' READMEs, docs/reference and the dashboards from their sources
	@python -m tools.docs
	@python -m tools.dashboards

bench: setup-lab ## Print the times of a cold lab and of a second run
	@python -m tests.bench.lab

bench-ansible: setup-lab ## Print what site.yml costs the controller for each node at 1, 10 and 100 names, on the lab; fails where the NVIDIA stack misses its goal (30 minutes)
	@python -m tests.bench.ansible_cost

bench-control-plane: setup-lab ## Print what outages of the control plane cost those who write, on the lab (SCENARIOS="NAME ...": only these; SCENARIOS=all: restore, rotation, upgrade and kills too, KILLS=n; 10 minutes, all of them 3 hours)
	@python -m tests.bench.control_plane $(SCENARIOS) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

bench-disk: setup-dev ## Print how near the probe of etcd's disk is to fio, on a disk as it is and on a slow one (needs fio; 3 minutes)
	@PYTHONPATH=collections python -m tests.bench.disk

bench-engine: setup-dev ## Print what exact verification and the burn-in's machinery cost
	@python -m tests.bench.engine

bench-events: setup-dev ## Print what a storm of events does to writes of everything else (needs root and the lab's binaries; 5 minutes)
	@python -m tests.bench.event_storm

bench-muster: setup-dev ## Print what muster baseline, status and why take for 7,500 nodes and their history (needs the lab's binaries)
	@python -m tests.bench.baseline
	@python -m tests.bench.muster

bench-inventory: setup-dev ## Print what the controller does for fleets of 100, 1,000 and 7,500 hosts (10 minutes)
	@python -m tests.bench.inventory

bench-admission: setup-dev ## Print what standing admission costs for 7,500 nodes on a real API server (NODES=n: for fewer, PHASES=idle,plane: only these; 40 minutes)
	@python -m tests.bench.admission $(NODES) $(PHASES)

bench-jobs: setup-dev ## Print shares against weights, partial gangs under kills, and gangs on up to 7,500 nodes without machines (PHASES=shares,kills,sizes: only these; needs the lab's binaries)
	@PYTHONPATH=collections python -m tests.bench.jobs $(PHASES)

bench-scaler: setup-dev ## Print node-hours, waits and power cycles of a simulated week of jobs (2 minutes)
	@python -m tests.bench.scaler

bench-monitoring: setup-lab ## Print what the fleet's Prometheus costs, beside default exporters (20 minutes)
	@python -m tests.bench.monitoring

lock: setup-dev ## Renew the lock files of the Python requirements
	@$(call LOCK,--extra controller,controller)
	@$(call LOCK,-c requirements/controller.txt --extra controller --extra dev,dev)
	@$(call LOCK,--extra node,node)
	@$(call LOCK,-c requirements/node.txt -c requirements/controller.txt --extra admitter,admitter)
	@$(call LOCK,-c requirements/node.txt --extra cuda12,node-cuda12)
	@$(call LOCK,-c requirements/node.txt --extra cuda13,node-cuda13)
