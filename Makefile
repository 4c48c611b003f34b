# make test and make demo are all that a clean clone needs; the rest is for work
# on keyhole itself. Needs Go, git and make; a C compiler adds the race detector.

GO        ?= go
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME  ?= 20s
# versitygw is the S3 server of the tests.
VERSITYGW := v1.8.0

RACE := $(shell command -v "$$($(GO) env CC)" >/dev/null 2>&1 && echo -race)

.PHONY: all help build test unit lint bench e2e demo fuzz crash soak fmt clean

all: build

help: ## print this
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

build: ## the binary, bin/keyhole
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/keyhole ./cmd/keyhole

# Everything: the linters, then every test, the seeds of the fuzz targets and the
# tests of the built binary among them.
test: lint unit ## everything that a change has to pass

unit: bin/.versitygw-$(VERSITYGW) ## all tests, with the race detector
	@test -n '$(RACE)' || echo 'no C compiler: testing without the race detector'
	$(GO) test $(RACE) -timeout 20m ./...

lint: ## formatting, vet, staticcheck
	@unformatted="$$(gofmt -l $$(git ls-files '*.go'))"; \
	  test -z "$$unformatted" || { echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

e2e: bin/.versitygw-$(VERSITYGW) ## the tests of the built binary alone
	$(GO) test $(RACE) -count=1 -timeout 20m ./cmd/... ./e2e/... ./scripts/...

# Ratios against peers, in one run; prints the table of docs/benchmarks.md.
bench: bin/.versitygw-$(VERSITYGW) ## ratios against peers, a quarter of an hour
	$(GO) run ./bench

demo: ## what it does, on real input
	$(GO) run ./scripts/demo

# Every fuzz target for FUZZTIME.
fuzz: ## every fuzz target for FUZZTIME
	scripts/fuzz.sh $(FUZZTIME)

# Power cuts at every step of disk and bucket over many seeds, then 200 times
# kill -9 under load. Some 15 minutes.
crash: bin/.versitygw-$(VERSITYGW) ## power cuts and kill -9 over many seeds, 15 minutes
	KEYHOLE_CRASH_SEEDS=20 $(GO) test -count=1 -run PowerCut -timeout 30m ./partition
	KEYHOLE_KILL_ROUNDS=200 $(GO) test -count=1 -v -run '^TestKill9$$' -timeout 30m ./e2e

# A million steps of the model, damage in every file, histories over many kills, writers stopped at
# any place. An hour at most.
soak: bin/.versitygw-$(VERSITYGW) ## long histories and a million steps of the model, an hour
	KEYHOLE_MODEL_STEPS=1000000 KEYHOLE_DAMAGE_BITS=16 $(GO) test -count=1 -timeout 60m ./internal/modeltest
	KEYHOLE_LINEAR_LIVES=60 KEYHOLE_WRITER_ROUNDS=20 $(GO) test -count=1 -v -run '^(TestLinearizable|TestPausedWriter)$$' -timeout 30m ./e2e

fmt: ## format the code
	gofmt -w $$(git ls-files '*.go')

clean: ## remove bin
	rm -rf bin

bin/.versitygw-$(VERSITYGW):
	GOBIN='$(CURDIR)/bin' CGO_ENABLED=0 $(GO) install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW)
	@touch $@
