# Sluice. `make help` lists the targets; docs/architecture.md is the tour.
V ?= plain
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif
B := build/$(V)
CC_plain := $(CC)
CC_asan  := $(CC)
CC_tsan  := $(CC)
CC_fuzz  := $(firstword $(foreach c,clang clang-19 clang-16 clang-15 clang-14,$(shell command -v $(c) 2>/dev/null)) clang)
COMPILE  := $(CC_$(V))

PKGS      := libevent libevent_openssl libevent_pthreads openssl libpcre2-8 libutf8proc liburing
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
WARN      := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wno-sign-conversion
OPT_plain := -O2 -g
OPT_asan  := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_tsan  := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
OPT_fuzz  := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
OPT        = $(OPT_$(V))
CFLAGS     = -std=c17 -D_GNU_SOURCE -ffp-contract=off $(WARN) $(OPT) -I. $(PKG_CFLAGS) -MMD -MP
LDLIBS    := $(PKG_LIBS) -lm -lpthread -ldl
LINK      := $(OPT_$(V))

# One file per instruction set, with flags of its own; absent from the build where the compiler cannot make it.
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
ifeq ($(ARCH),x86_64)
  ISA_avx2   := -mavx2 -mfma -mf16c
  ISA_avx512 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
  ISA_SKIP   :=
else
  ISA_SKIP   := %_avx2.c %_avx512.c
endif

# Vulkan is built in where its headers and shader tools are; else gpu_absent.c says that it is not.
GPU_BUILD := $(shell command -v glslc >/dev/null 2>&1 && command -v spirv-val >/dev/null 2>&1 && echo '\#include <vulkan/vulkan.h>' | $(CC) -E -x c - >/dev/null 2>&1 && echo yes)
ifeq ($(GPU_BUILD),yes)
  GPU_SKIP := kernels/gpu_absent.c
else
  GPU_SKIP := $(filter-out kernels/gpu_absent.c kernels/gpu_mask.c,$(wildcard kernels/gpu_*.c))
endif

LAYERS := base policies kernels offload engine gateway cli
SRC    := $(filter-out $(ISA_SKIP) $(GPU_SKIP) cli/main.c,$(foreach d,$(LAYERS),$(wildcard $(d)/*.c)))
OBJ    := $(SRC:%.c=$(B)/%.o) $(B)/gen/embedded.o $(if $(filter yes,$(GPU_BUILD)),$(B)/gen/shaders.o)
LIB    := $(B)/libsluice.a
TESTS  := $(patsubst %.c,$(B)/%,$(wildcard tests/*/check_*.c))
ifeq ($(V),tsan) # what has threads
TESTS  := $(addprefix $(B)/tests/,base/check_pool base/check_log offload/check_weights offload/check_stream kernels/check_cpu_backend) \
          $(addprefix $(B)/tests/engine/check_,engine link mock reuse draft) $(filter $(B)/tests/gateway/% $(B)/tests/cli/%,$(TESTS)) \
          $(if $(T),$(B)/tests/$(dir $(T))check_$(notdir $(T)))
endif
HELPER := $(patsubst %.c,$(B)/%.o,$(filter-out $(ISA_SKIP),$(wildcard tests/support/*.c)))
FUZZ   := $(patsubst tests/fuzz/%.c,build/fuzz/bin/%,$(wildcard tests/fuzz/fuzz_*.c))
T      ?=

.PHONY: deb all check check-clients asan tsan fuzz bench demo install help clean lib tests
all: build/sluice
build/sluice: build/plain/sluice
	@ln -sf plain/sluice $@
	@$(if $(filter yes,$(GPU_BUILD)),:,echo "built without Vulkan: libvulkan-dev, glslc or spirv-tools is missing (sh scripts/deps.sh gpu)")

$(B)/sluice: $(B)/cli/main.o $(LIB)
	$(COMPILE) $(LINK) -o $@ $^ $(LDLIBS)
$(LIB): $(OBJ)
	@rm -f $@
	@ar rcs $@ $^
lib: $(LIB)

$(B)/%_avx2.o: CFLAGS += $(ISA_avx2)
$(B)/%_avx512.o: CFLAGS += $(ISA_avx512)
# Vector files are pure loops and slow to compile instrumented: address checks see them, thread checks see their plain C twins.
ifneq ($(filter tsan fuzz,$(V)),)
$(B)/kernels/%_avx2.o $(B)/kernels/%_avx512.o: OPT = -O1 -g
endif
$(B)/tests/support/%_avx2.o: OPT = -O2 -g
$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(COMPILE) $(CFLAGS) -c -o $@ $<
SHADERS := $(wildcard kernels/shaders/*.comp)
$(B)/gen/shaders.c: scripts/shaders.sh kernels/gpu_push.h $(SHADERS) $(wildcard kernels/shaders/*.glsl)
	@mkdir -p $(@D)
	sh scripts/shaders.sh $(B)/gen/spirv $(SHADERS) > $@.tmp && mv $@.tmp $@
$(B)/gen/%.o: $(B)/gen/%.c
	$(COMPILE) $(CFLAGS) -c -o $@ $<
EMBED := $(wildcard conf/models/*.json conf/pages/*.html) tests/data/operators/known.json
$(B)/gen/embedded.c: scripts/embed.sh $(EMBED)
	@mkdir -p $(@D)
	sh scripts/embed.sh $(EMBED) > $@.tmp && mv $@.tmp $@

# Tests: a program per module. `make check T=offload/catalog` runs one; the runner counts and prints the closing line.
CHECK_LIBS := $(shell pkg-config --libs check 2>/dev/null || echo -lcheck)
$(B)/tests/%: $(B)/tests/%.o $(HELPER) $(LIB)
	$(COMPILE) $(LINK) -o $@ $^ $(LDLIBS) $(CHECK_LIBS)
tests: $(TESTS)
check:
	@sh scripts/deps.sh run test
	@$(MAKE) --no-print-directory build/sluice tests
	@sh scripts/check.sh "$(B)" $(T)
asan tsan:
	@sh scripts/deps.sh run test
	@$(MAKE) --no-print-directory V=$@ build/$@/sluice tests
	@CK_DEFAULT_TIMEOUT=600 sh scripts/check.sh build/$@ $(T)
check-clients: all
	@sh scripts/deps.sh run test clients
	@sh tests/clients/run.sh

build/fuzz/bin/%: build/fuzz/tests/fuzz/%.o build/fuzz/libsluice.a
	@mkdir -p $(@D)
	$(CC_fuzz) -g -fsanitize=fuzzer,address,undefined -o $@ $^ $(LDLIBS)
fuzz:
	@sh scripts/deps.sh run fuzz
	@$(MAKE) --no-print-directory V=fuzz fuzz-programs
	@sh scripts/fuzz.sh build/fuzz/bin $(T)
.PHONY: fuzz-programs
fuzz-programs: $(FUZZ)

demo:
	@sh scripts/deps.sh run
	@$(MAKE) --no-print-directory build/sluice
	@sh scripts/demo.sh
$(B)/bench/load: $(patsubst %.c,$(B)/%.o,$(wildcard bench/load*.c)) $(LIB)
	$(COMPILE) $(LINK) -o $@ $^ $(LDLIBS)
$(B)/bench/%: $(B)/bench/%.o $(LIB)
	$(COMPILE) $(LINK) -o $@ $^ $(LDLIBS)
bench: all
	@sh bench/run.sh $(T)

PREFIX ?= /usr/local
install: all
	install -D -m 755 build/plain/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	install -d $(DESTDIR)$(PREFIX)/share/sluice/conf
	cp -r conf/. $(DESTDIR)$(PREFIX)/share/sluice/conf/
deb: build/sluice
	sh packaging/deb.sh $$(build/sluice version | cut -d' ' -f2)
clean:
	rm -rf build
help:
	@echo "make                  build/sluice"
	@echo "make demo             install what is missing, fetch a small real model, serve it over TLS, stream an answer"
	@echo "make check [T=x/y]    build and run all tests, or tests/x/check_y only"
	@echo "make asan | tsan      the same tests under sanitizers (T=x/y works)"
	@echo "make fuzz [T=name]    a short run of each fuzz target (FUZZ_RUNS=n)"
	@echo "make check-clients    the openai and anthropic packages against a live server, in a venv of their own"
	@echo "make bench            benchmarks (bench/; bench/gateway.sh: the gateway under load); make install PREFIX=/usr/local; make deb; make clean"

-include $(shell find build -name '*.d' 2>/dev/null)
# Objects of tests are kept. Not by an empty .SECONDARY: under it an object that joins (Vulkan's, once its tools are there) is not missed.
.PRECIOUS: $(B)/%.o $(B)/gen/%.o
