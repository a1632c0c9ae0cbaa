# SPDX-License-Identifier: Apache-2.0
"""hmb-trace-daemon: drain a ring into a dump set."""
