/* A stand-in for NVIDIA's driver library, with the functions that Sluice calls. The file that
 * FAKE_NVML names has a line for each GPU: its UUID, the GiB of its memory, the GiB in use, and 1
 * if it is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15, MOST = 16 };
struct gpu { char uuid[64]; unsigned long long total, used; int lost; };
struct memory { unsigned long long total, free, used; };
static struct gpu gpus[MOST];
static unsigned count;

int nvmlInit_v2(void) {
  FILE *f = fopen(getenv("FAKE_NVML"), "r");
  count = 0;
  while (f && count < MOST) {
    struct gpu *g = &gpus[count];
    if (fscanf(f, "%63s %llu %llu %d", g->uuid, &g->total, &g->used, &g->lost) != 4) break;
    count++;
  }
  if (f) fclose(f);
  return SUCCESS;
}
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "fault"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count; return SUCCESS; }
int nvmlDeviceGetCount(unsigned *n) { return nvmlDeviceGetCount_v2(n); }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) { *handle = &gpus[i]; return gpus[i].lost ? GPU_IS_LOST : SUCCESS; }
int nvmlDeviceGetHandleByIndex(unsigned i, void **handle) { return nvmlDeviceGetHandleByIndex_v2(i, handle); }
int nvmlDeviceGetUUID(struct gpu *g, char *text, unsigned size) { snprintf(text, size, "%s", g->uuid); return SUCCESS; }
int nvmlDeviceGetName(struct gpu *g, char *text, unsigned size) { (void)g; snprintf(text, size, "stand-in"); return SUCCESS; }
int nvmlDeviceGetMigMode(struct gpu *g, unsigned *now, unsigned *later) { (void)g; *now = *later = 0; return NOT_SUPPORTED; }
int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *m) {
  m->total = g->total << 30; m->used = g->used << 30; m->free = m->total - m->used;
  return SUCCESS;
}
