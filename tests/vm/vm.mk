# SPDX-License-Identifier: Apache-2.0
# The kernel module and the virtual machine that tests it. Downloads are kept in tests/vm/cache.

# Guests at once, each with a core and 1 GiB; each process takes whole files of tests.
VM_GUESTS ?= 2
.PHONY: test-vm test-drive module

test-vm: build $(call have,test) ## the kernel module and the whole chain in QEMU, without KVM
	$(BIN)/pytest -m vm -n $(VM_GUESTS) --dist loadfile --no-loadscope-reorder --durations=15 $(PYTEST_ARGS) \
		--ignore tests/vm/test_drive.py --ignore tests/vm/test_docs.py tests/vm

test-drive: build $(call have,test) ## the long ones: a simulated drive on three kernels, and docs/hardware.md word for word
	$(BIN)/pytest -m vm --durations=15 $(PYTEST_ARGS) tests/vm/test_drive.py tests/vm/test_docs.py

module: ## build nvme_hmb_trace.ko for the running kernel
	$(MAKE) -C kmod_shim modules
