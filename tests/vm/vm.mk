# SPDX-License-Identifier: Apache-2.0
# The kernel module and the virtual machine that tests it. Downloads are kept in tests/vm/cache.

.PHONY: test-vm module

test-vm: build
	$(BIN)/pytest -m vm --durations=5 tests/vm

module:
	$(MAKE) -C kmod_shim modules
