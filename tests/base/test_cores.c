/* How many threads make sense: quotas of control groups of both versions at every height, as `docker run --cpus` and
 * systemd's CPUQuota set them, hyper-threads, and the affinity of the process. */
#include "base/cores.h"

#include <sched.h>

#include "made_up_system.h"

static const char *const v2 =
    "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 master:3 - cgroup2 cgroup2 rw,nsdelegate\n";

static void expect(const char *what, int threads) {
    Cores cores;
    cores_below(root, &cores);
    TEST_MSG(cores.threads == threads, "%s: %d threads, not %d", what, cores.threads, threads);
}

int main(void) {
    TEST(mkdtemp(root) != NULL);
    begin_system("0::/\n", "");
    Cores all;
    cores_below(root, &all); /* no topology: each processor is a core */
    const int most = all.threads;
    TEST(most >= 1 && all.count <= CORES_MAX && all.count <= most);
    TEST(cores_of_process()->threads >= 1 && cores_of_process()->threads <= most);
    TEST(cores_threads(1) == 1 && cores_threads(CORES_MAX) == cores_of_process()->threads);

    begin_system("0::/\n", v2); /* a container: docker run --cpus 1 */
    expect("no limit file", most);
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    expect("no limit", most);
    put("sys/fs/cgroup/cpu.max", "100000 100000\n");
    expect("one processor", 1);
    put("sys/fs/cgroup/cpu.max", "5000 100000\n");
    expect("a twentieth", 1);
    put("sys/fs/cgroup/cpu.max", "100001 100000\n"); /* rounded up */
    expect("a little more than one", most < 2 ? most : 2);
    put("sys/fs/cgroup/cpu.max", "99900000 100000\n");
    expect("more than there is", most);
    for (const char *const *bad = (const char *[]){"", "max\n", "0 100000\n", "100000 0\n", "-1 100000\n", "1e5 1e5\n",
             "100000\n", "99999999999999999999999 100000\n", NULL};
         *bad; bad++) {
        put("sys/fs/cgroup/cpu.max", *bad);
        expect(*bad, most);
    }

    begin_system("0::/system.slice/apus.service\n", v2); /* CPUQuota of a service, or of a slice above it */
    put("sys/fs/cgroup/system.slice/apus.service/cpu.max", "max 100000\n");
    expect("a service without a quota", most);
    put("sys/fs/cgroup/system.slice/cpu.max", "50000 100000\n");
    expect("its slice", 1);
    put("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/other.slice/cpu.max", "50000 100000\n");
    expect("another slice", most);

    begin_system("5:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
        "31 22 0:27 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
        "30 22 0:26 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    expect("version 1 without a limit", most);
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
    expect("version 1", 1);

    if (most > 1 && all.cpus[0] == 0 && all.cpus[1] == 1) {
        begin_system("0::/\n", v2);
        put("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n");
        put("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n");
        expect("two threads of a core", most - 1);
        put("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,1\n");
        put("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0,1\n");
        expect("two threads of a core, as a list", most - 1);
        put("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,64\n");
        put("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,65\n");
        expect("whose second threads are elsewhere", most);
    }
#if defined(__linux__)
    begin_system("0::/\n", v2);
    if (all.count) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)all.cpus[all.count - 1], &one);
        TEST(sched_setaffinity(0, sizeof one, &one) == 0);
        expect("bound to a processor", 1);
    }
#endif
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", root);
    TEST(system(command) == 0);
    return test_done();
}
