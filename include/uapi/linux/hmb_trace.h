/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT */
/*
 * The layout shared by SSD firmware, nvme_hmb_trace.ko, libhmbtrace and the
 * tests: ring header, record header, flags, slice mark, and the ioctls of
 * /dev/nvme<N>-hmbtrace.  docs/format.md explains every field.
 *
 * Readers: the kernel, hosted C and C++, and freestanding firmware (-nostdinc,
 * no Linux).  The last gets its types from the compiler.
 */
#ifndef _UAPI_LINUX_HMB_TRACE_H
#define _UAPI_LINUX_HMB_TRACE_H

#if defined(__KERNEL__) || defined(__linux__)
#include <linux/ioctl.h>
#include <linux/types.h>
#else
typedef __UINT8_TYPE__ __u8;
typedef __UINT16_TYPE__ __u16;
typedef __UINT16_TYPE__ __le16;
typedef __UINT32_TYPE__ __u32;
typedef __UINT32_TYPE__ __le32;
typedef __UINT64_TYPE__ __u64;
typedef __UINT64_TYPE__ __le64;
#endif

#define HMB_TRACE_ABI_VERSION 1

#define HMB_RING_MAGIC 0x54424D48u /* "HMBT" in memory order */
#define HMB_RECORD_MAGIC 0x54434552u /* "RECT" in memory order */

#define HMB_RECORD_AREA_OFF 0x40u /* bytes from the base to the record area */
#define HMB_RECORD_ALIGN 8u /* bytes */
#define HMB_RECORD_HDR_SIZE 32u /* bytes */
#define HMB_RECORD_MAX_PAYLOAD 4064u /* bytes: 4096 - header */
#define HMB_RING_SIZE_MIN 32u /* bytes: one record header */

/* struct hmb_ring_hdr.flags: written by firmware, never by the host */
#define HMB_RING_FLAG_OVERFLOWED (1u << 0) /* records were dropped */
#define HMB_RING_FLAG_FROZEN (1u << 1) /* firmware has stopped writing */

/* struct hmb_record_hdr.flags */
#define HMB_REC_FLAG_WRAP_MARKER (1u << 0) /* skip to the lap boundary */
#define HMB_REC_FLAG_TRUNCATED (1u << 1) /* the payload was clipped */

/**
 * struct hmb_ring_hdr - the first 64 bytes of the region
 * @magic: HMB_RING_MAGIC
 * @version: HMB_TRACE_ABI_VERSION
 * @ring_size: bytes of the record area, a power of two
 * @record_area_off: HMB_RECORD_AREA_OFF
 * @head: producer cursor, a monotonic byte count, stored by firmware
 * @tail: consumer cursor, a monotonic byte count, stored by the host
 * @flags: HMB_RING_FLAG_*
 * @reserved0: zero
 * @reserved1: zero
 * @reserved2: zero
 * @reserved3: zero
 */
struct hmb_ring_hdr {
	__le32 magic;
	__le32 version;
	__le32 ring_size;
	__le32 record_area_off;
	__le64 head;
	__le64 tail;
	__le32 flags;
	__le32 reserved0;
	__le64 reserved1;
	__le64 reserved2;
	__le64 reserved3;
};

/**
 * struct hmb_record_hdr - the 32 bytes before every payload
 * @magic: HMB_RECORD_MAGIC
 * @seq: sequence number, wraps silently at 2^32
 * @ts_ns: firmware monotonic clock, nanoseconds
 * @opcode: event id, defined by firmware
 * @cpu: firmware core that emitted the record
 * @flags: HMB_REC_FLAG_*
 * @payload_len: payload bytes, padding not counted
 * @reserved0: zero
 * @reserved1: zero
 */
struct hmb_record_hdr {
	__le32 magic;
	__le32 seq;
	__le64 ts_ns;
	__le16 opcode;
	__u8 cpu;
	__u8 flags;
	__le16 payload_len;
	__le16 reserved0;
	__le64 reserved1;
};

#define HMB_SLICE_MAGIC 0x53424D48u /* "HMBS" in memory order */
#define HMB_SLICE_VERSION 1

/**
 * struct hmb_slice_mark - the last 64 bytes of a slice that the host made for tracing
 * @magic: HMB_SLICE_MAGIC
 * @version: HMB_SLICE_VERSION
 * @slice_size: bytes, the size of HMB descriptor 0
 * @dma_addr: bus address of the slice's first byte, as descriptor 0 has it
 * @reserved: zero
 * @reserved1: zero
 * @check: makes the sixteen little-endian 32-bit words of the mark add up to 0
 *
 * The host writes the mark before it enables the Host Memory Buffer, and clears
 * it before it frees the memory.  Firmware traces into descriptor 0 only where
 * every field fits, and otherwise uses the whole buffer as it would without
 * tracing.  The ring is the largest power of two that fits between the ring
 * header and the mark.
 */
struct hmb_slice_mark {
	__le32 magic;
	__le32 version;
	__le64 slice_size;
	__le64 dma_addr;
	__le64 reserved[4];
	__le32 reserved1;
	__le32 check;
};

#define HMB_SLICE_MARK_SIZE 64u /* bytes */

/* struct nvme_hmb_trace_info.flags */
#define NVME_HMB_TRACE_INFO_RING (1u << 0) /* a valid ring is there */
#define NVME_HMB_TRACE_INFO_READONLY (1u << 1) /* mappings are read-only, tail moves by ioctl */

/**
 * struct nvme_hmb_trace_info - NVME_HMB_TRACE_GET_INFO
 * @size: in: sizeof(struct nvme_hmb_trace_info) of the caller; out: of the kernel
 * @flags: in: zero; out: NVME_HMB_TRACE_INFO_*
 * @abi_version: as in the ring header
 * @ring_size: as in the ring header, bytes
 * @record_area_off: as in the ring header, bytes
 * @total_mmap_size: record_area_off + ring_size, bytes, not page-rounded
 * @generation: how often the ring was seen to be initialised anew
 * @reserved: zero both ways
 *
 * Without NVME_HMB_TRACE_INFO_RING, the geometry is that of the largest ring
 * that the region could hold.
 */
struct nvme_hmb_trace_info {
	__u32 size;
	__u32 flags;
	__u32 abi_version;
	__u32 ring_size;
	__u32 record_area_off;
	__u32 total_mmap_size;
	__u64 generation;
	__u64 reserved[4];
};

/**
 * struct nvme_hmb_trace_advance - NVME_HMB_TRACE_ADVANCE_TAIL
 * @size: sizeof(struct nvme_hmb_trace_advance)
 * @flags: zero
 * @expected: the tail that the caller believes is there; ESTALE if it is not
 * @new_tail: the tail to store: forward, at most to head
 * @reserved: zero
 */
struct nvme_hmb_trace_advance {
	__u32 size;
	__u32 flags;
	__u64 expected;
	__u64 new_tail;
	__u64 reserved;
};

/*
 * Both structures may grow at their end; the kernel goes by the size field and
 * ignores the size that is encoded in the request number.  Less than these
 * sizes is EINVAL; more is fine as long as what the kernel does not know is
 * zero (E2BIG otherwise).
 */
#define NVME_HMB_TRACE_INFO_SIZE_VER0 64
#define NVME_HMB_TRACE_ADVANCE_SIZE_VER0 32

#if defined(__KERNEL__) || defined(__linux__)
/* A type that Documentation/userspace-api/ioctl/ioctl-number.rst does not list. */
#define NVME_HMB_TRACE_IOC 0xE7
#define NVME_HMB_TRACE_GET_INFO _IOWR(NVME_HMB_TRACE_IOC, 0x01, struct nvme_hmb_trace_info)
#define NVME_HMB_TRACE_ADVANCE_TAIL _IOW(NVME_HMB_TRACE_IOC, 0x02, struct nvme_hmb_trace_advance)
#endif

/* The layout holds for every compiler that accepts this file. */
#ifdef __cplusplus
#define HMB_ASSERT static_assert
#else
#define HMB_ASSERT _Static_assert
#endif
#define HMB_LAYOUT(type, field, off)                                \
	HMB_ASSERT(__builtin_offsetof(struct type, field) == (off), \
		   #type "." #field " must be at " #off)

HMB_LAYOUT(hmb_ring_hdr, magic, 0x00);
HMB_LAYOUT(hmb_ring_hdr, version, 0x04);
HMB_LAYOUT(hmb_ring_hdr, ring_size, 0x08);
HMB_LAYOUT(hmb_ring_hdr, record_area_off, 0x0c);
HMB_LAYOUT(hmb_ring_hdr, head, 0x10);
HMB_LAYOUT(hmb_ring_hdr, tail, 0x18);
HMB_LAYOUT(hmb_ring_hdr, flags, 0x20);
HMB_LAYOUT(hmb_ring_hdr, reserved0, 0x24);
HMB_LAYOUT(hmb_ring_hdr, reserved1, 0x28);
HMB_LAYOUT(hmb_ring_hdr, reserved2, 0x30);
HMB_LAYOUT(hmb_ring_hdr, reserved3, 0x38);
HMB_ASSERT(sizeof(struct hmb_ring_hdr) == HMB_RECORD_AREA_OFF, "ring header is 64 bytes");

HMB_LAYOUT(hmb_record_hdr, magic, 0x00);
HMB_LAYOUT(hmb_record_hdr, seq, 0x04);
HMB_LAYOUT(hmb_record_hdr, ts_ns, 0x08);
HMB_LAYOUT(hmb_record_hdr, opcode, 0x10);
HMB_LAYOUT(hmb_record_hdr, cpu, 0x12);
HMB_LAYOUT(hmb_record_hdr, flags, 0x13);
HMB_LAYOUT(hmb_record_hdr, payload_len, 0x14);
HMB_LAYOUT(hmb_record_hdr, reserved0, 0x16);
HMB_LAYOUT(hmb_record_hdr, reserved1, 0x18);
HMB_ASSERT(sizeof(struct hmb_record_hdr) == HMB_RECORD_HDR_SIZE, "record header is 32 bytes");

HMB_LAYOUT(hmb_slice_mark, magic, 0x00);
HMB_LAYOUT(hmb_slice_mark, version, 0x04);
HMB_LAYOUT(hmb_slice_mark, slice_size, 0x08);
HMB_LAYOUT(hmb_slice_mark, dma_addr, 0x10);
HMB_LAYOUT(hmb_slice_mark, reserved, 0x18);
HMB_LAYOUT(hmb_slice_mark, reserved1, 0x38);
HMB_LAYOUT(hmb_slice_mark, check, 0x3c);
HMB_ASSERT(sizeof(struct hmb_slice_mark) == HMB_SLICE_MARK_SIZE, "slice mark is 64 bytes");

HMB_LAYOUT(nvme_hmb_trace_info, size, 0x00);
HMB_LAYOUT(nvme_hmb_trace_info, flags, 0x04);
HMB_LAYOUT(nvme_hmb_trace_info, abi_version, 0x08);
HMB_LAYOUT(nvme_hmb_trace_info, ring_size, 0x0c);
HMB_LAYOUT(nvme_hmb_trace_info, record_area_off, 0x10);
HMB_LAYOUT(nvme_hmb_trace_info, total_mmap_size, 0x14);
HMB_LAYOUT(nvme_hmb_trace_info, generation, 0x18);
HMB_LAYOUT(nvme_hmb_trace_info, reserved, 0x20);
HMB_ASSERT(sizeof(struct nvme_hmb_trace_info) == NVME_HMB_TRACE_INFO_SIZE_VER0,
	   "GET_INFO is 64 bytes");

HMB_LAYOUT(nvme_hmb_trace_advance, size, 0x00);
HMB_LAYOUT(nvme_hmb_trace_advance, flags, 0x04);
HMB_LAYOUT(nvme_hmb_trace_advance, expected, 0x08);
HMB_LAYOUT(nvme_hmb_trace_advance, new_tail, 0x10);
HMB_LAYOUT(nvme_hmb_trace_advance, reserved, 0x18);
HMB_ASSERT(sizeof(struct nvme_hmb_trace_advance) == NVME_HMB_TRACE_ADVANCE_SIZE_VER0,
	   "ADVANCE_TAIL is 32 bytes");

#undef HMB_LAYOUT
#undef HMB_ASSERT

#endif /* _UAPI_LINUX_HMB_TRACE_H */
