/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places where a test may want to end the process, or to look.  The library defines nothing
 * here: a test links or preloads hmb_testpoint() (tests/native/testpoint.c); without one each
 * point costs a load and a branch a pass.
 */
#ifndef HMB_TESTPOINT_H
#define HMB_TESTPOINT_H

enum hmb_testpoint {
	HMB_TESTPOINT_BEFORE_COPY = 1,
	HMB_TESTPOINT_BEFORE_COMMIT,
	HMB_TESTPOINT_INSIDE_COMMIT, /* slot written, not yet published */
	HMB_TESTPOINT_AFTER_COMMIT, /* published, tail not yet stored */
	HMB_TESTPOINT_AFTER_TAIL,
};

extern void hmb_testpoint(enum hmb_testpoint point) __attribute__((weak, visibility("default")));

static inline void testpoint(enum hmb_testpoint point)
{
	if (hmb_testpoint)
		hmb_testpoint(point);
}

#endif
