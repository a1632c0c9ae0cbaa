# SPDX-License-Identifier: Apache-2.0
"""The only module that touches libhmbsim: opens it through the interface it carries."""

from __future__ import annotations

from typing import Any

from hmb_trace._binding import library_path, open_library

_PATH = library_path(__file__, "_libhmbsim")


def _open() -> tuple[Any, Any]:
    api, library = open_library("hmb_producer_sim", _PATH, "hmb_sim_api_text")
    size = api.sizeof("struct hmb_sim_config")
    if library.hmb_sim_sizeof_config() != size:
        raise ImportError(f"{_PATH.name}: struct hmb_sim_config is not {size} bytes in C")
    return api, library


ffi, lib = _open()
