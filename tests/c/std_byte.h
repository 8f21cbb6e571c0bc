// Lets MuJoCo's headers from 3.2.3 on, which name std::byte, compile as C++11, so
// that it can be seen that ours do. Put before everything else by the compiler's
// -include; no host needs it.
#ifndef ROLLOUT_TESTS_STD_BYTE_H_
#define ROLLOUT_TESTS_STD_BYTE_H_

namespace std {
enum class byte : unsigned char {};
}  // namespace std

#endif  // ROLLOUT_TESTS_STD_BYTE_H_
