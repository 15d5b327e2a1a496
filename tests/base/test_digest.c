/* Digests against published values, and pieces against the whole. */
#include "base/digest.h"

#include "base/sha256.h"
#include "test.h"

static void hex_of(const void *bytes, size_t size, char out[2 * SHA256_BYTES + 1]) {
    uint8_t digest[SHA256_BYTES];
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, bytes, size);
    sha256_end(&sha, digest);
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/* FIPS 180-4's examples, and a million letters a. */
static void test_sha256(void) {
    static const struct {
        const char *text, *digest;
    } cases[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char hex[2 * SHA256_BYTES + 1];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hex_of(cases[i].text, strlen(cases[i].text), hex);
        TEST_MSG(!strcmp(hex, cases[i].digest), "%s", hex);
    }
    static char letters[1000000];
    memset(letters, 'a', sizeof letters);
    hex_of(letters, sizeof letters, hex);
    TEST(!strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
}

static void test_pieces(void) {
    uint8_t bytes[300], whole[SHA256_BYTES], parts[SHA256_BYTES];
    uint64_t state = 1;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)test_random(&state);
    for (size_t cut = 0; cut <= sizeof bytes; cut++) {
        Sha256 sha;
        sha256_begin(&sha);
        sha256_add(&sha, bytes, sizeof bytes);
        sha256_end(&sha, whole);
        sha256_begin(&sha);
        sha256_add(&sha, bytes, cut);
        sha256_add(&sha, bytes + cut, sizeof bytes - cut);
        sha256_end(&sha, parts);
        TEST(!memcmp(whole, parts, sizeof whole));
    }
}

/* Values of the reference implementation (xxhash 0.8). */
static void test_checksum(void) {
    TEST(checksum64("", 0) == 0xEF46DB3751D8E999u);
    TEST(checksum64("a", 1) == 0xD24EC4F1A98C6E5Bu);
    TEST(checksum64("abc", 3) == 0x44BC2CF5AD770999u);
    const char *text = "Nobody inspects the spammish repetition";
    TEST(checksum64(text, strlen(text)) == 0xFBCEA83C8A378BF1u);
    TEST(checksum64_seeded(1, "", 0) == 0xD5AFBA1336A3BE4Bu);
    TEST(checksum64_seeded(0x9E3779B1u, "abc", 3) == 0x1318DF30094A85FDu);
    TEST(checksum64_seeded(checksum64("", 0), text, strlen(text)) == 0x35AA89418937FE49u);
    uint8_t bytes[100] = {0};
    const uint64_t zeros = checksum64(bytes, sizeof bytes);
    for (int i = 0; i < 100; i++) {
        bytes[i] = 1;
        TEST(checksum64(bytes, sizeof bytes) != zeros);
        bytes[i] = 0;
    }
}

int main(void) {
    test_sha256();
    test_pieces();
    test_checksum();
    return test_done();
}
