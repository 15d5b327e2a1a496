/* --expert-faults: what is read, and what is refused. */
#include "cli/expert_faults.h"

#include "base/slice.h"
#include "model/model.h"
#include "test.h"

int main(void) {
    static const char *const refused[] = {
        "fail", "fail:", "fail:x", "fail:-1", "lose:1", "fail:1;cut:1", "fail:1,,cut:1", "fail:1,", "slow:1e9", ","};
    Error error = {0};
    ExpertCacheFaults faults;
    TEST(expert_faults_read("fail:0.5,cut:0.25,hang:1e-3,slow:5,silence:500,seed:7", &faults, &error));
    TEST(faults.fail == 0.5 && faults.cut == 0.25 && faults.hang == 1e-3);
    TEST(faults.slow_ms == 5 && faults.silence_ms == 500 && faults.seed == 7);
    TEST(expert_faults_read("slow:20", &faults, &error) && faults.slow_ms == 20 && faults.fail == 0);
    TEST(expert_faults_read("", &faults, &error) && faults.slow_ms == 0);
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        error = (Error){0};
        TEST_MSG(!expert_faults_read(refused[i], &faults, &error), "%s", refused[i]);
        TEST_MSG(error.code == ERROR_USAGE && strstr(error.text, "no fault of reads"), "%s", error.text);
    }
    return test_done();
}
