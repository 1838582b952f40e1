/* What nvidia-ctk and device plugins ask beyond the burn-in: no MIG devices are made here. */
#include "fake.h"

EXPORT int nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *count) { ENTER(d); *count = 0; return OK; }
EXPORT int nvmlDeviceIsMigDeviceHandle(device_t d, unsigned *is_mig) { ENTER(d); *is_mig = 0; return OK; }
