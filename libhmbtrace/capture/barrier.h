/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole memory model, in one place.
 *
 * The other side of the ring is a device that writes host memory by DMA, so
 * ordering between CPU cores is not enough: on arm64 the domain must be the
 * outer shareable one.  On x86-64 device writes become visible in order and
 * the CPU keeps loads before later stores; only the compiler needs taming.
 *
 *   firmware                              host (this library)
 *   --------                              -------------------
 *   write record bytes                    load head        (A)
 *   barrier (A')                          hmb_dma_rmb()    pairs with A'
 *   store head                            copy bytes
 *                                         hmb_dma_mb()     pairs with B'
 *   load tail                             store tail       (B)
 *   barrier (B')
 *   overwrite freed bytes
 */
#ifndef HMB_BARRIER_H
#define HMB_BARRIER_H

#include <stdint.h>

#include <linux/hmb_trace.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the formats are little-endian and so is this library"
#endif

#if defined(__aarch64__)
#define hmb_dma_rmb() __asm__ volatile("dmb oshld" ::: "memory")
#define hmb_dma_mb() __asm__ volatile("dmb osh" ::: "memory")
#elif defined(__x86_64__)
#define hmb_dma_rmb() __asm__ volatile("" ::: "memory")
#define hmb_dma_mb() __asm__ volatile("" ::: "memory")
#else
#error "x86-64 and arm64 only: add the DMA barriers of this architecture"
#endif

/* Acquire: later reads of ring bytes stay behind it. Pairs with the firmware's barrier A'. */
static inline uint64_t hmb_load_acquire(const __le64 *cursor)
{
	uint64_t value = __atomic_load_n(cursor, __ATOMIC_ACQUIRE);

	hmb_dma_rmb();
	return value;
}

/*
 * Reads of ring bytes stay before this load: used to look at a cursor again
 * after a copy. Pairs with the firmware's barrier B'.
 */
static inline uint64_t hmb_load_after_copy(const __le64 *cursor)
{
	hmb_dma_rmb();
	return __atomic_load_n(cursor, __ATOMIC_RELAXED);
}

/* Release: reads of ring bytes stay before the store. Pairs with the firmware's barrier B'. */
static inline int hmb_exchange_release(__le64 *cursor, __le64 expected, __le64 value)
{
	hmb_dma_mb();
	return __atomic_compare_exchange_n(cursor, &expected, value, 0, __ATOMIC_RELEASE,
					   __ATOMIC_RELAXED);
}

#endif
