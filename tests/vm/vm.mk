# SPDX-License-Identifier: Apache-2.0
# The kernel module and the virtual machine that tests it. Downloads are kept in tests/vm/cache.

.PHONY: test-vm module

test-vm: build $(call have,test) ## the kernel module and the whole chain in QEMU, without KVM
	$(BIN)/pytest -m vm --durations=5 tests/vm

module: ## build nvme_hmb_trace.ko for the running kernel
	$(MAKE) -C kmod_shim modules
