/* What a service manager hears of a server: sd_notify(3)'s protocol. */
#pragma once

/* "READY=1", "STOPPING=1"; no effect without NOTIFY_SOCKET. */
void service_notify(const char *state);
