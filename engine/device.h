/* engine/device.h - a device's memory divided before anything is allocated on it: weights and activations first, KV pages get what is left.
 *
 * Owns:      nothing. The backend allocates (kernels/gpu_backend.c) what is planned here. */
#ifndef SLUICE_ENGINE_DEVICE_H
#define SLUICE_ENGINE_DEVICE_H
#include "engine/engine.h"
#include "engine/exec.h"
#include "engine/kv.h"

#define ENG_POOLS_MAX 32
struct eng_device { struct krn_device d; struct krn_pool pools[ENG_POOLS_MAX]; uint64_t weight_bytes, bytes_max; };
/* Of c: device, seqs. Sets kv->bytes_max and kv->elsewhere. ERR_BUDGET with every item and what is missing; ERR_NOTFOUND and
 * ERR_UNSUPPORTED: no such device, or it lacks something. */
int eng_device_plan(struct eng_device *out, const struct eng_config *c, const struct eng_plan *p, const struct eng_exec_config *x, struct eng_kv_config *kv, struct err *e);
void eng_device_pools(struct eng_device *d, const eng_kv *kv); /* once the pages are counted */
void eng_device_whole_tables(struct eng_plan *p);              /* tables that are looked into go to the device whole, not by rows */
uint64_t eng_device_weight_bytes(const struct eng_plan *p);    /* of all weights there */
#endif
