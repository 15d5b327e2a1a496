/* What is left of memory, in made-up systems: control groups of both versions, limits at every height, mounted
 * elsewhere, seen from within a container, and files that are missing or say nonsense. */
#include "base/memory.h"

#include "made_up_system.h"

enum { MIB = 1 << 20 };

static void put_mib(const char *name, int mib) {
    char text[32];
    snprintf(text, sizeof text, "%lld\n", (long long)mib * MIB);
    put(name, text);
}

/* An empty machine with 1000 MiB available, whose process is in the given groups. */
static void begin(const char *groups, const char *mounts) {
    begin_system(groups, mounts);
    put("proc/meminfo", "MemTotal:       16000000 kB\nMemFree:          200000 kB\nMemAvailable:    1024000 kB\n");
}

static void expect_mib(const char *what, int mib) {
    const size_t bytes = memory_available_below(root);
    TEST_MSG(bytes == (size_t)mib * MIB, "%s: %.2f MiB, not %d", what, (double)bytes / MIB, mib);
}

#define MOUNTS_V2                                                                                                      \
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"                                                          \
    "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 master:3 - cgroup2 cgroup2 rw,nsdelegate\n"

static void test_v2(void) {
    begin("0::/system.slice/apus.service\n", MOUNTS_V2);
    expect_mib("no group has files", 1000);
    put("sys/fs/cgroup/system.slice/apus.service/memory.max", "max\n");
    put("sys/fs/cgroup/system.slice/apus.service/memory.high", "max\n");
    put_mib("sys/fs/cgroup/system.slice/apus.service/memory.current", 900);
    expect_mib("without a limit what is used does not count", 1000);
    put_mib("sys/fs/cgroup/system.slice/apus.service/memory.max", 500); /* MemoryMax=500M */
    put_mib("sys/fs/cgroup/system.slice/apus.service/memory.current", 120);
    expect_mib("what is used is subtracted", 380);
    put("sys/fs/cgroup/system.slice/apus.service/memory.stat",
        "anon 1\nfile 99\nworkingset_inactive_file 7\ninactive_file 20971520\nactive_file 41943040\n");
    expect_mib("inactive file pages are given back", 400);
    put_mib("sys/fs/cgroup/system.slice/apus.service/memory.high", 450);
    expect_mib("memory.high counts as well", 350);
    put_mib("sys/fs/cgroup/system.slice/memory.max", 1500);
    put_mib("sys/fs/cgroup/system.slice/memory.current", 1400);
    expect_mib("the group above is fuller", 100);
    put_mib("sys/fs/cgroup/system.slice/memory.current", 1600);
    expect_mib("and over its limit", 0);
    put("sys/fs/cgroup/system.slice/memory.max", "max\n");
    put_mib("sys/fs/cgroup/memory.max", 300); /* where a container's own group is mounted as the root */
    put_mib("sys/fs/cgroup/memory.current", 100);
    expect_mib("the topmost group", 200);
    put_mib("sys/fs/cgroup/memory.max", 9000);
    put_mib("sys/fs/cgroup/system.slice/apus.service/memory.max", 8000);
    put_mib("sys/fs/cgroup/system.slice/apus.service/memory.high", 8000);
    expect_mib("limits above what the machine has", 1000);
    put_mib("sys/fs/cgroup/other.slice/memory.max", 1);
    expect_mib("the limit of a group that we are not in", 1000);
}

static void test_v1(void) {
    begin("12:cpu,cpuacct:/\n9:memory:/docker/abc\n1:name=systemd:/docker/abc\n",
        "30 22 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "31 22 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    put_mib("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", 250);
    expect_mib("no limit", 1000);
    put_mib("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", 600);
    expect_mib("the limit", 350);
    put("sys/fs/cgroup/memory/docker/abc/memory.stat",
        "inactive_file 1048576\ntotal_inactive_file 52428800\nhierarchical_memory_limit 1\n");
    expect_mib("inactive file pages of the groups below as well", 400);
    put_mib("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", 700);
    put_mib("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", 650);
    put("sys/fs/cgroup/memory/docker/memory.use_hierarchy", "1\n");
    expect_mib("the group above", 50);
    put("sys/fs/cgroup/memory/docker/memory.use_hierarchy", "0\n");
    expect_mib("which does not count what is below it", 400);
    put_mib("sys/fs/cgroup/cpu/memory.limit_in_bytes", 1);
    expect_mib("a file in another hierarchy", 400);
}

static void test_hybrid(void) {
    begin("9:memory:/user.slice\n0::/user.slice\n",
        "30 22 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 22 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("sys/fs/cgroup/unified/user.slice/cgroup.procs", "1\n");
    put_mib("sys/fs/cgroup/memory/user.slice/memory.limit_in_bytes", 80);
    put_mib("sys/fs/cgroup/memory/user.slice/memory.usage_in_bytes", 30);
    expect_mib("memory in the first version, groups in both", 50);
}

static void test_containers(void) {
    begin("0::/docker/abc/app\n", "31 22 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
    put_mib("sys/fs/cgroup/app/memory.max", 70);
    put_mib("sys/fs/cgroup/memory.max", 60);
    expect_mib("a part of the tree is mounted", 60);
    begin("0::/docker/abc\n", "31 22 0:27 /docker/abcdef /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
    put_mib("sys/fs/cgroup/memory.max", 60);
    expect_mib("somebody else's part", 1000);
    begin("0::/\n", "31 22 0:27 / /mnt/two\\040words/cg rw - cgroup2 none rw\n");
    put_mib("mnt/two words/cg/memory.max", 90);
    expect_mib("mounted elsewhere, in a namespace of its own", 90);
    begin("0::/\n", "31 22 0:27 /../.. /sys/fs/cgroup rw - cgroup2 none rw\n");
    put_mib("sys/fs/cgroup/memory.max", 95);
    expect_mib("the mount is from outside the namespace", 95);
    begin("0::/../elsewhere\n", "31 22 0:27 / /sys/fs/cgroup rw - cgroup2 none rw\n");
    put_mib("sys/fs/cgroup/memory.max", 95);
    expect_mib("the process is outside what is mounted", 1000);
    begin("0::/gone (deleted)\n", "31 22 0:27 / /sys/fs/cgroup rw - cgroup2 none rw\n");
    put_mib("sys/fs/cgroup/memory.max", 95);
    expect_mib("the own group is gone, those above count", 95);
}

static void test_nonsense(void) {
    static const char *const numbers[] = {"", "\n", "x", "12x", "-5", "0x10", "99999999999999999999999999", "max max"};
    begin("0::/a\n", MOUNTS_V2);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        put("sys/fs/cgroup/a/memory.max", numbers[i]);
        expect_mib(numbers[i], 1000);
    }
    put_mib("sys/fs/cgroup/a/memory.max", 40);
    put("sys/fs/cgroup/a/memory.current", "none");
    put("sys/fs/cgroup/a/memory.stat", "inactive_file\ninactive_file x\n\n inactive_file 5");
    expect_mib("a limit, and nothing sensible of what is used", 40);
    put_mib("sys/fs/cgroup/a/memory.current", 10);
    put("sys/fs/cgroup/a/memory.stat", "inactive_file 99999999999999");
    expect_mib("more to give back than is used", 40);
    static const char *const mounts[] = {"", "\n\n", "31", "31 22 0:27 / /sys/fs/cgroup", "a b c d e f - cgroup2",
        "- cgroup2 - cgroup2", "31 22 0:27 / /sys/fs/cgroup\\04 rw - cgroup2 none rw"};
    for (size_t i = 0; i < COUNT_OF(mounts); i++) {
        put("proc/self/mountinfo", mounts[i]);
        expect_mib(mounts[i], 1000);
    }
    static const char *const groups[] = {"", "\n", "0:", "0::", ":::", "1::/a", "0:memory:/a", "x"};
    put("proc/self/mountinfo", MOUNTS_V2);
    for (size_t i = 0; i < COUNT_OF(groups); i++) {
        put("proc/self/cgroup", groups[i]);
        expect_mib(groups[i], 1000);
    }
    begin("0::/a\n", MOUNTS_V2);
    put("proc/meminfo", "MemTotal: 5 kB\n");
    const size_t half = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 2;
    TEST(memory_available_below(root) == half);
    put_mib("sys/fs/cgroup/a/memory.max", 40);
    expect_mib("without MemAvailable, with a limit", 40);
    TEST(memory_available_below("/nonexistent") == half);
}

int main(void) {
    if (!mkdtemp(root)) return 1;
#ifdef __linux__
    test_v2();
    test_v1();
    test_hybrid();
    test_containers();
    test_nonsense();
#endif
    TEST(memory_available() > 0);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", root);
    TEST(system(command) == 0);
    return test_done();
}
