# SPDX-License-Identifier: Apache-2.0
"""An NVMe controller with a Host Memory Buffer, for QEMU to attach over vfio-user.

server      vfio-user messages           -> device
device      PCI function: config space, registers, MSI-X, guest memory
controller  registers, queues, resets    -> admin, namespace
hmb         the buffer that the host lends, and when firmware may touch it
tracer      the reference producer writing into the slice
referee     what host or firmware did that they must not do
"""
