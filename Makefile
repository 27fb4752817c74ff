# One target per table and figure. Knobs: SCALE, SEEDS, LAUNCHER; nothing else.
#   make reproduce                       everything, minutes on two cores
#   make table4 SCALE=cpu SEEDS=1,2,3    a larger study, three seeds (interrupt and repeat at will)
#   make fig6 LAUNCHER=basic             one run after another in one process

comma    := ,
SCALE    ?= quick
SEEDS    ?= $(if $(filter cpu cpu_wide,$(SCALE)),1$(comma)2$(comma)3,1)
LAUNCHER ?= joblib

PYTHON  ?= python3
VENV    := .venv
RUN     := $(VENV)/bin/python
# Where `make conformance` has installed other implementations, they are measured beside ours.
PEERS   := $(if $(wildcard .venv-peers/bin/python),.venv-peers/bin/python,$(RUN))
STAMP   := $(VENV)/.installed

# Every table and figure (experiments/<name>.py): what it needs is trained at SCALE, then measured, then it is
# rendered.
ITEMS   := table1 table2 table3 table4 table5 fig3 fig4 fig5 fig6 fig7 fig8 fig9 multiplier downstream interventions eps tradeoff zoo convert

.DEFAULT_GOAL := help
.PHONY: help setup data reproduce all facts $(ITEMS) init lr lr_fairness published kernels traffic bench report wandb-sync wandb-report notebooks gpu-check smoke conformance test lint clean

help:  ## list the targets
	@grep -hE '^[a-z0-9_-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F'\t' '{printf "  %-12s %s\n", $$1, $$2}'
	@echo "  items: $(ITEMS)"
	@echo "         each is a target: what it needs is trained at SCALE, then it is rendered"
	@echo "  knobs: SCALE=$(SCALE) (smoke quick cpu cpu_wide gpu published)  SEEDS=$(SEEDS) (as 1,2,3)  LAUNCHER=$(LAUNCHER) (basic joblib submitit_local submitit_slurm)"

setup: $(STAMP)  ## create .venv with the pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed; name it with PYTHON=python3.11"; exit 2; }
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned dependencies into $(VENV) (a minute; several where pip brings a CUDA build of torch)"
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,data,slurm]'
	@touch $@

data: $(STAMP)  ## build the default corpus (fetched once, never committed)
	$(RUN) -m repro.data.prepare data=prose scale=$(SCALE)

reproduce: published table4  ## Table 4 end to end at SCALE=quick, beside the published numbers
	@echo; echo "published: results/published/table4.* and fig6.*;  measured here: results/$(SCALE)/table4.*"

$(ITEMS): $(STAMP)
	$(call item,$@)

init: $(STAMP)  ## which initialisation PreNorm prefers at SCALE, and the gap under each
	$(call choice,init)

lr: $(STAMP)  ## which peak learning rate PreNorm prefers at SCALE
	$(call choice,lr)

lr_fairness: $(STAMP)  ## the learning rate swept for each arm
	$(call choice,lr_fairness)

published: $(STAMP)  ## render every item from the paper's own numbers (no training)
	$(RUN) -m repro.reproduce render all --scale published

all: $(STAMP)  ## every item at SCALE; SCALE=published renders only, in seconds
	@code=0; $(foreach name,$(filter-out table1 table3 table5 fig3,$(ITEMS)),( $(call runs,$(name),$(filter-out $(SHARED),$(name)),$(filter-out $(RACED),$(name))); exit $$code ) || code=$$?;) \
	$(RUN) -m repro.reproduce render all --scale $(SCALE) || code=$$?; \
	$(RUN) -m repro.reproduce report || code=$$?; exit $$code

facts: $(STAMP)  ## what every scheme states about itself, for Table 5; after adding an arm
	$(RUN) -m repro.train.facts

kernels: $(STAMP)  ## registers, spills and occupancy of every Triton kernel, compiled without a GPU
	$(RUN) -m repro.bench.aot

traffic: $(STAMP)  ## bytes that the Triton kernels move, counted in the interpreter, beside Table 1
	$(PEERS) -m repro.bench.traffic

# 1: something else ran meanwhile; what was measured is shown all the same, and a repeat measures the rest.
bench: $(STAMP)  ## time and peak memory of a training step by depth and width; alone on the machine
	@code=0; $(PEERS) -m repro.bench steps || code=$$?; test $$code -le 1 || exit $$code; \
	$(RUN) -m analysis.bench || exit $$?; exit $$code

report: $(STAMP)  ## results/report.html: every item on one page, from what is rendered or committed
	$(RUN) -m repro.reproduce report

wandb-sync: $(STAMP)  ## send runs that were mirrored offline to W&B
	$(RUN) -m repro.wandb_sync

wandb-report: $(STAMP)  ## the sections of the report as a W&B report
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[report]'
	$(RUN) -m repro.wandb_report

notebooks: $(STAMP)  ## execute the notebooks: pages into notebooks/executed (.ipynb and HTML where Jupyter is installed)
	$(RUN) -m repro.notebooks

gpu-check: $(STAMP)  ## on a machine with a GPU: correctness, speed and training steps, at most five minutes
	$(RUN) -m repro.bench.gpu

smoke: $(STAMP)  ## every arm through the whole pipeline, under two minutes
	$(RUN) -m repro.train -m experiment=all_arms scale=smoke
	$(RUN) -m repro.train.step_time experiment=table4 scale=smoke
	$(RUN) -m repro.reproduce render table4 fig6 --scale smoke

conformance: $(STAMP)  ## the literals through every backend here and every public AttnRes (peers go into .venv-peers)
	$(RUN) -m repro.conformance install
	$(RUN) -m repro.conformance

test: $(STAMP)  ## the whole test suite
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2

lint: $(STAMP)  ## ruff and mypy
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

clean:  ## remove caches; never runs, data or results
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What an item needs besides runs; measured alone, after training.
step_time          = $(RUN) -m repro.train.step_time experiment=$(1) scale=$(SCALE)
BEFORE_table4       = $(call step_time,table4)
BEFORE_fig6         = $(call step_time,fig6)
BEFORE_tradeoff     = $(call step_time,tradeoff) && $(RUN) -m repro.bench.step_memory experiment=tradeoff scale=$(SCALE)
# Their runs are those of table2, table4 and fig6, which `all` trains before; so are the step times of two.
SHARED              := fig4 fig5 fig8 fig9 downstream interventions tradeoff convert
RACED               := table4 fig6
BEFORE_zoo          = $(call step_time,zoo) && $(RUN) -m repro.bench.step_memory experiment=zoo scale=$(SCALE)
BEFORE_convert      = $(RUN) -m repro.convert scale=$(SCALE)
BEFORE_fig9         = $(RUN) -m repro.probe matrices scale=$(SCALE)
BEFORE_eps          = $(RUN) -m repro.train.eps_deviation scale=$(SCALE)
BEFORE_interventions = $(RUN) -m repro.probe interventions scale=$(SCALE)
BEFORE_downstream   = $(RUN) -m repro.probe downstream scale=$(SCALE)

# Train (unless SCALE=published) and measure. A failed run (1) fails the target after all else is done.
train = $(RUN) -m repro.train -m experiment=$(1) scale=$(SCALE) seed=$(SEEDS) hydra/launcher=$(LAUNCHER)

define runs
code=0; if [ "$(SCALE)" != published ] && [ -f conf/experiment/$(1).yaml ]; then :; \
  $(if $(2),$(call train,$(1)) || code=$$?; test $$code -le 1 || exit $$code;) \
  $(if $(3),$(if $(BEFORE_$(1)),$(BEFORE_$(1)) || exit $$?;)) fi
endef

define item
@$(call runs,$(1),train,measure); \
$(RUN) -m repro.reproduce render $(1) --scale $(SCALE) || exit $$?; exit $$code
endef

# A sweep over settings: no step times.
define choice
@$(RUN) -m repro.train -m experiment=$(1) scale=$(SCALE) seed=$(SEEDS) hydra/launcher=$(LAUNCHER); code=$$?; \
test $$code -le 1 || exit $$code; \
$(RUN) -m repro.reproduce render $(1) --scale $(SCALE) || exit $$?; exit $$code
endef
