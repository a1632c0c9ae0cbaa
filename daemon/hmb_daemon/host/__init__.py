# SPDX-License-Identifier: Apache-2.0
"""The system around: logs, signals, sockets, metrics."""
