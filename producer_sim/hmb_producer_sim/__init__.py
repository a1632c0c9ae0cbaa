# SPDX-License-Identifier: Apache-2.0
"""hmb-firmware-sim: firmware in a process."""
