// How many CPUs a process is said to have, by its limits in made-up trees of /proc and cgroups.
#include "core/cpus.h"

#include <cmath>
#include <thread>

#include "tests/core/made_up_tree.h"
#include "tests/support.h"

namespace grt::test {
namespace {

TEST_SUITE("core") {
  TEST_CASE("allowed_cpus is between 1 and the number of CPUs") {
    CHECK(allowed_cpus() >= 1);
    CHECK(allowed_cpus() <= static_cast<int>(std::thread::hardware_concurrency()));
  }

  TEST_CASE("the smallest cgroup quota on the way to the root counts") {
    const TempDir dir;
    const std::string root = dir.path.string();
    CHECK(std::isinf(detail::cgroup_cpus(root)));  // no /proc at all

    put(dir / "proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs rw\n"
        "30 25 0:26 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct\n");
    put(dir / "proc/self/cgroup", "4:cpu,cpuacct:/docker/abc/job\n0::/user/run\n");
    CHECK(std::isinf(detail::cgroup_cpus(root)));

    put(dir / "sys/fs/cgroup/unified/user/run/cpu.max", "max 100000\n");
    put(dir / "sys/fs/cgroup/unified/user/cpu.max", "350000 100000\n");
    CHECK(detail::cgroup_cpus(root) == 3.5);

    put(dir / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put(dir / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    CHECK(detail::cgroup_cpus(root) == 3.5);
    put(dir / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    put(dir / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    CHECK(detail::cgroup_cpus(root) == 0.5);
  }
}

}  // namespace
}  // namespace grt::test
