// How much memory a process is said to have left, by its limits in made-up trees of /proc and cgroups.
#include "core/memory.h"

#include <limits>

#include "tests/core/made_up_tree.h"
#include "tests/support.h"

namespace grt::test {
namespace {

TEST_SUITE("core") {
  TEST_CASE("there is memory left, and some was used") {
    CHECK(available_memory() > 0);
    CHECK(peak_resident_memory() > 0);
  }

  TEST_CASE(
      "version 2: the least that a cgroup on the way to the root leaves counts, with the files it could give up") {
    const TempDir dir;
    const std::string root = dir.path.string();
    constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    CHECK(detail::cgroup_memory(root) == kNone);  // no /proc at all

    put(dir / "proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n");
    put(dir / "proc/self/cgroup", "0::/user/run\n");
    put(dir / "sys/fs/cgroup/user/run/memory.max", "max\n");
    put(dir / "sys/fs/cgroup/user/run/memory.current", "900000\n");
    CHECK(detail::cgroup_memory(root) == kNone);

    put(dir / "sys/fs/cgroup/user/memory.max", "1000000\n");
    CHECK(detail::cgroup_memory(root) == 1000000);  // what it holds is not told
    put(dir / "sys/fs/cgroup/user/memory.current", "900000\n");
    CHECK(detail::cgroup_memory(root) == 100000);
    put(dir / "sys/fs/cgroup/user/memory.stat",
        "anon 200000\nfile 700000\nshmem 200000\ninactive_anon 1\ninactive_file 300000\nactive_file 150000\n");
    CHECK(detail::cgroup_memory(root) == 550000);
    put(dir / "sys/fs/cgroup/user/run/memory.max", "920000\n");
    CHECK(detail::cgroup_memory(root) == 20000);
  }

  TEST_CASE("version 1: the memory controller's hierarchy is found, from where the mount shows it") {
    const TempDir dir;
    const std::string root = dir.path.string();
    put(dir / "proc/self/mountinfo",
        "31 23 0:28 /docker/abc /sys/fs/cgroup/cpu rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct\n"
        "32 31 0:29 /docker/abc /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory\n");
    put(dir / "proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n7:memory:/docker/abc/job\n");
    put(dir / "sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
    put(dir / "sys/fs/cgroup/memory/memory.usage_in_bytes", "1500000\n");
    put(dir / "sys/fs/cgroup/memory/memory.stat",
        "inactive_file 1\nactive_file 1\ntotal_inactive_file 400000\ntotal_active_file 100000\n");
    put(dir / "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");  // none
    put(dir / "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1000\n");
    CHECK(detail::cgroup_memory(root) == 1000000);
  }
}

}  // namespace
}  // namespace grt::test
