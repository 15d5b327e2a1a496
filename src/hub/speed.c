#include "hub/speed.h"

#include "base/clock.h"

enum { MARK_EVERY_MS = 2500, ETA_MAX_S = 100 * 3600 }; /* what takes longer than that stands still */

void speed_begin(Speed *speed) {
    *speed = (Speed){0};
    speed->ns[0] = speed->ns[1] = clock_ns();
}

void speed_show(Speed *speed, int64_t received_bytes, HubProgress *progress) {
    const int64_t now = clock_ns();
    if (now - speed->ns[1] > MARK_EVERY_MS * INT64_C(1000000)) {
        speed->ns[0] = speed->ns[1];
        speed->bytes[0] = speed->bytes[1];
        speed->ns[1] = now;
        speed->bytes[1] = received_bytes;
    }
    const double seconds = (double)(now - speed->ns[0]) * 1e-9;
    progress->bytes_per_s = seconds > 0 ? (double)(received_bytes - speed->bytes[0]) / seconds : 0;
    const double left = (double)(progress->total_bytes - progress->done_bytes);
    progress->eta_s = left < progress->bytes_per_s * ETA_MAX_S ? left / progress->bytes_per_s : -1;
}
