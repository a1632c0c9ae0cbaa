// SPDX-License-Identifier: Apache-2.0
#include "sim_core.h"
int sim_ftl_begin(struct hmb_sim *sim)
{
	(void)sim;
	return -EINVAL;
}
int sim_ftl_next(struct hmb_sim *sim)
{
	(void)sim;
	return -ENODATA;
}
void sim_ftl_end(struct hmb_sim *sim)
{
	(void)sim;
}
