#!/bin/sh
# rdma-unit-test.sh RDMA-UNIT-TEST MAGIC_ENUM PROGRAM: builds the unit tests of Google's
# rdma-unit-test into one program, without Bazel: some ten minutes on one core.
#
# The first two are folders with the sources, by hand: github.com/google/rdma-unit-test
# (tried: 1f368ab3324e) and github.com/Neargye/magic_enum (tried: 0.9.6). Of Debian 12 it
# needs g++ libabsl-dev libgtest-dev libgmock-dev libibverbs-dev. They are compiled as they
# are but for string views, of which Debian's Abseil has a type of its own; what Abseil
# has for logs in later versions stands below.
set -eu
[ $# = 3 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
rut=$(cd "$1" && pwd)
enum=$(cd "$2" && pwd)
case $3 in /*) program=$3 ;; *) program=$PWD/$3 ;; esac
[ -d "$rut/unit" ] || { echo "$1 has no folder unit: it is not rdma-unit-test" >&2; exit 1; }
header=$(find "$enum" -name magic_enum.hpp | head -n 1)
[ -n "$header" ] || { echo "$2 has no magic_enum.hpp" >&2; exit 1; }
work=$program.build
mkdir -p "$work/src/absl/log" "$work/o"
cp -R "$rut/internal" "$rut/public" "$rut/unit" "$work/src"
cd "$work/src"
rm unit/gunit_main.cc
sed -i 's/#include <string_view>/#include "absl\/strings\/string_view.h"/; s/std::string_view/absl::string_view/g
	s/\(magic_enum::enum_name([a-z_.]*)\)/std::string(\1)/' internal/*.cc internal/*.h public/*.cc public/*.h

cat >absl/log/log.h <<'END'
#pragma once
#include <cstdlib>
#include <iostream>
#include <sstream>
struct LogLine {
  bool fatal;
  std::ostringstream s;
  std::ostream& stream() { return s; }
  ~LogLine() {
    std::cerr << s.str() << std::endl;
    if (fatal) abort();
  }
};
struct LogVoid {
  void operator&(std::ostream&) {}
};
enum { LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_DFATAL, LOG_FATAL };
#define LOG(x) LogLine{LOG_##x >= LOG_DFATAL, std::ostringstream(#x " " __FILE__ ": ", std::ios::ate)}.stream()
#define LOG_IF(x, c) !(c) ? (void)0 : LogVoid() & LOG(x)
#define LOG_EVERY_N_SEC(x, n) LOG(x)
#define LOG_FIRST_N(x, n) LOG(x)
#define VLOG(n) LOG_IF(INFO, false)
END
cat >absl/log/check.h <<'END'
#pragma once
#include "absl/log/log.h"
#define CHECK(c) LOG_IF(FATAL, !(c)) << "not so: " #c " "
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_NE(a, b) CHECK((a) != (b))
#define CHECK_GT(a, b) CHECK((a) > (b))
#define CHECK_GE(a, b) CHECK((a) >= (b))
#define CHECK_LT(a, b) CHECK((a) < (b))
#define CHECK_LE(a, b) CHECK((a) <= (b))
#define CHECK_OK(x) CHECK((x).ok())
#define DCHECK CHECK
#define DCHECK_EQ CHECK_EQ
#define DCHECK_NE CHECK_NE
#define DCHECK_GT CHECK_GT
#define DCHECK_GE CHECK_GE
#define DCHECK_LT CHECK_LT
#define DCHECK_LE CHECK_LE
END

# What the suite is to know of the device. Its deviations are not registered here, where
# their tests would not be run, but stand in reasons.txt.
cat >main.cc <<'END'
#include <string>

#include "absl/debugging/failure_signal_handler.h"
#include "absl/flags/parse.h"
#include "gtest/gtest.h"
#include "internal/introspection_registrar.h"
#include "public/introspection.h"

namespace rdma_unit_test {

class Roce : public NicIntrospection {
 public:
  Roce(const std::string& name, const ibv_device_attr& attr) : NicIntrospection(name, attr) {}
  bool SupportsIpV6() const override { return false; }  // one address a process
  bool SupportsReRegMr() const override { return true; }
  bool SupportsZeroLengthMr() const override { return false; }
  bool IsSlowNic() const override { return true; }
};

}  // namespace rdma_unit_test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::InstallFailureSignalHandler({});
  absl::ParseCommandLine(argc, argv);
  rdma_unit_test::IntrospectionRegistrar::GetInstance().Register(
      "roce", [](const std::string& name, const ibv_device_attr& attr) { return new rdma_unit_test::Roce(name, attr); });
  return RUN_ALL_TESTS();
}
END

flags="-std=c++17 -O0 -w -I. -I${header%/*} -I${header%/*}/.."
# What nearly all of them include is compiled once.
cat >all.h <<'END'
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/log/check.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "infiniband/verbs.h"
END
[ -e all.h.gch ] || ${CXX:-g++} $flags -x c++-header all.h -o all.h.gch
n=0
for f in internal/*.cc public/*.cc unit/*.cc main.cc; do
	n=$((n + 1))
	o=../o/$(echo "$f" | tr / _).o
	printf '\r%2d of %d: %-40s' $n "$(ls internal/*.cc public/*.cc unit/*.cc main.cc | wc -l)" "$f" >&2
	[ "$o" -nt "$f" ] && [ "$f" != main.cc ] && continue
	${CXX:-g++} $flags -include all.h -c "$f" -o "$o.new"
	mv "$o.new" "$o"
done
echo >&2
${CXX:-g++} -o "$program" ../o/*.o -lgmock -lgtest -Wl,--start-group \
	$(find /usr/lib -name 'libabsl_*.a') -Wl,--end-group -libverbs -lpthread
echo "$program"
