/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the reference producer asks of its processor: ordered 8-byte accesses
 * to host memory.  A firmware port replaces this one file.
 *
 *   firmware (this)                       host (libhmbtrace/capture/barrier.h)
 *   ---------------                       ----------------------------
 *   write record bytes                    load head        (A)
 *   hmb_port_wmb()      (A')              hmb_dma_rmb()    pairs with A'
 *   store head                            copy bytes
 *                                         hmb_dma_mb()     pairs with B'
 *   load tail                             store tail       (B)
 *   hmb_port_mb()       (B')
 *   overwrite freed bytes
 */
#ifndef HMB_PRODUCER_PORT_H
#define HMB_PRODUCER_PORT_H

#include <linux/hmb_trace.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the ring is little-endian: swap in hmb_port_store64() and hmb_port_load64()"
#endif

#if defined(__aarch64__)
/* Outer shareable: the other side sits behind a bus, not in our cluster. */
#define hmb_port_wmb() __asm__ volatile("dmb oshst" ::: "memory")
#define hmb_port_mb() __asm__ volatile("dmb osh" ::: "memory")
#elif defined(__x86_64__)
/* Stores stay in order, and loads stay before later stores: only the compiler needs taming. */
#define hmb_port_wmb() __asm__ volatile("" ::: "memory")
#define hmb_port_mb() __asm__ volatile("" ::: "memory")
#elif defined(__riscv) && __riscv_xlen == 64
#define hmb_port_wmb() __asm__ volatile("fence ow, ow" ::: "memory")
#define hmb_port_mb() __asm__ volatile("fence iorw, iorw" ::: "memory")
#else
#error "name the barriers of this processor, and make its 8-byte accesses single ones"
#endif

/*
 * One aligned 8-byte access.  A cursor must never be seen half written: a
 * 32-bit core has to send it as one 8-byte burst (or through its DMA engine).
 */
static inline void hmb_port_store64(void *to, __u64 value)
{
	*(volatile __u64 *)to = value;
}

static inline __u64 hmb_port_load64(const void *from)
{
	return *(const volatile __u64 *)from;
}

static inline void hmb_port_store32(void *to, __u32 value)
{
	*(volatile __u32 *)to = value;
}

/* Publish a cursor: everything written before is visible first.  A', pairs with hmb_dma_rmb(). */
static inline void hmb_port_store_release64(void *to, __u64 value)
{
	hmb_port_wmb();
	__atomic_store_n((__u64 *)to, value, __ATOMIC_RELEASE);
}

/* Read a cursor: nothing written later overtakes it.  B', pairs with hmb_dma_mb(). */
static inline __u64 hmb_port_load_acquire64(const void *from)
{
	__u64 value = __atomic_load_n((const __u64 *)from, __ATOMIC_ACQUIRE);

	hmb_port_mb();
	return value;
}

#endif
