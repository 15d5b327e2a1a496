#include "server/lan/qr.h"

#if APUS_QRENCODE
#include <qrencode.h>
#endif

int qr_modules(const char *text, Buffer *out) {
#if APUS_QRENCODE
    QRcode *code = QRcode_encodeString8bit(text, 0, QR_ECLEVEL_L);
    if (!code) return 0;
    const int width = code->width;
    for (int i = 0; i < width * width; i++) buffer_byte(out, (char)('0' + (code->data[i] & 1)));
    QRcode_free(code);
    return out->failed ? 0 : width;
#else
    (void)text;
    (void)out;
    return 0;
#endif
}

bool qr_print(const char *text, Buffer *out) {
    enum { QUIET = 2 };
    static const char *const halves[] = {"█", "▀", "▄", " "}; /* upper and lower light; upper; lower; none */
    Buffer modules = {0};
    const int width = qr_modules(text, &modules);
    for (int y = -QUIET; width && y < width + QUIET; y += 2) {
        buffer_text(out, "\033[97;40m");
        for (int x = -QUIET; x < width + QUIET; x++) {
            int dark = 0;
            for (int half = 0; half < 2; half++) {
                const int row = y + half;
                const bool inside = row >= 0 && row < width && x >= 0 && x < width;
                if (inside && modules.data[row * width + x] == '1') dark |= half ? 1 : 2;
            }
            buffer_text(out, halves[dark]);
        }
        buffer_text(out, "\033[0m\n");
    }
    buffer_free(&modules);
    return width > 0 && !out->failed;
}
