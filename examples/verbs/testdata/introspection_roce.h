// What rdma-unit-test is to know of this library's device: ../rdma-unit-test builds the
// suite with it.
#ifndef INTROSPECTION_ROCE_H_
#define INTROSPECTION_ROCE_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "infiniband/verbs.h"
#include "internal/introspection_registrar.h"
#include "public/introspection.h"

namespace rdma_unit_test {

class IntrospectionRoce : public NicIntrospection {
 public:
  static void Register() {
    IntrospectionRegistrar::GetInstance().Register(
        "roce", [](const std::string& name, const ibv_device_attr& attr) {
          return new IntrospectionRoce(name, attr);
        });
  }

  bool SupportsIpV6() const override { return false; }  // one address a process
  bool SupportsReRegMr() const override { return true; }
  bool FullCqIdlesQp() const override { return false; }  // it ends in Error
  bool SupportsZeroLengthMr() const override { return false; }
  bool IsSlowNic() const override { return true; }

 protected:
  const absl::flat_hash_map<TestcaseKey, std::string>& GetDeviations() const override {
    static const absl::flat_hash_map<TestcaseKey, std::string> deviations{};
    return deviations;
  }

 private:
  IntrospectionRoce(const std::string& name, const ibv_device_attr& attr)
      : NicIntrospection(name, attr) {}
};

}  // namespace rdma_unit_test

#endif  // INTROSPECTION_ROCE_H_
