// SPDX-License-Identifier: Apache-2.0
/* Replaced by the engine proper. */
int hmb_sim_version(void);
int hmb_sim_version(void)
{
	return 1;
}
