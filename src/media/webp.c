/* WebP through libwebp; of an animation the first frame. */
#include <stdlib.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "media/video_internal.h"

enum { RIFF_HEAD = 12, CHUNK_HEAD = 8 };

static uint32_t number_at(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Chunks EXIF, whose block may begin with JPEG's marker, and XMP. */
static int find_orientation(Slice file) {
    int by_exif = 0, by_xmp = 0;
    for (size_t at = RIFF_HEAD; at <= file.size && file.size - at >= CHUNK_HEAD;) {
        const size_t size = number_at((const uint8_t *)file.data + at + 4), left = file.size - at - CHUNK_HEAD;
        if (size > left) break;
        Slice chunk = {file.data + at + CHUNK_HEAD, size};
        if (!memcmp(file.data + at, "EXIF", 4)) {
            if (slice_starts(chunk, SLICE("Exif\0\0"))) chunk = (Slice){chunk.data + 6, chunk.size - 6};
            by_exif = exif_orientation(chunk);
        }
        if (!memcmp(file.data + at, "XMP ", 4)) by_xmp = xmp_orientation(chunk);
        at += CHUNK_HEAD + size + (size & 1);
    }
    return by_exif ? by_exif : by_xmp;
}

static const char *status_text(VP8StatusCode status) {
    switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY: return "no memory for the decoder";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "an unsupported feature";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file is truncated";
    default: return "damaged bytes";
    }
}

static bool read_features(Slice file, WebPBitstreamFeatures *features, Error *error) {
    const VP8StatusCode status = WebPGetFeatures((const uint8_t *)file.data, file.size, features);
    return status == VP8_STATUS_OK || fail(error, ERROR_FORMAT, "%s", status_text(status));
}

bool webp_header(Slice file, ImageHeader *header, Error *error) {
    WebPBitstreamFeatures features;
    if (!read_features(file, &features, error)) return false;
    *header = (ImageHeader){features.width, features.height, find_orientation(file)};
    return true;
}

/* Gets the frames of an animation one after the other. */
static WebPAnimDecoder *open_animation(const WebPData *data, int width, int height, Error *error) {
    WebPAnimDecoderOptions options;
    WebPAnimInfo info;
    if (!WebPAnimDecoderOptionsInit(&options)) {
        fail(error, ERROR_UNSUPPORTED, "another version of libwebpdemux");
        return NULL;
    }
    options.color_mode = MODE_RGBA;
    options.use_threads = 0;
    WebPAnimDecoder *decoder = WebPAnimDecoderNew(data, &options);
    if (decoder && WebPAnimDecoderGetInfo(decoder, &info) && (int)info.canvas_width == width &&
        (int)info.canvas_height == height)
        return decoder;
    WebPAnimDecoderDelete(decoder);
    fail(error, ERROR_FORMAT, "damaged bytes");
    return NULL;
}

static bool next_canvas(WebPAnimDecoder *decoder, uint8_t **canvas, Error *error) {
    int time_ms;
    return WebPAnimDecoderGetNext(decoder, canvas, &time_ms) || fail(error, ERROR_FORMAT, "damaged bytes");
}

static void drop_alpha(const uint8_t *canvas, const Image *image) {
    const size_t count = (size_t)image->width * (size_t)image->height;
    for (size_t i = 0; i < count; i++) memcpy(image->rgb + 3 * i, canvas + 4 * i, 3);
}

static bool decode_frame(Slice file, Image *image, Error *error) {
    const WebPData data = {(const uint8_t *)file.data, file.size};
    WebPAnimDecoder *decoder = open_animation(&data, image->width, image->height, error);
    uint8_t *canvas = NULL;
    const bool ok = decoder && next_canvas(decoder, &canvas, error);
    if (ok) drop_alpha(canvas, image);
    WebPAnimDecoderDelete(decoder);
    return ok;
}

bool webp_open(Video *video, Error *error) {
    const WebPData data = {(const uint8_t *)video->file.data, video->file.size};
    WebPDemuxer *demuxer = WebPDemux(&data);
    if (!demuxer) return fail(error, ERROR_FORMAT, "damaged or truncated");
    video->width = (int)WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH);
    video->height = (int)WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT);
    WebPIterator frame;
    bool ok = WebPDemuxGetFrame(demuxer, 1, &frame) != 0;
    if (ok) {
        do ok = video_add_frame(video, frame.duration, error);
        while (ok && WebPDemuxNextFrame(&frame));
    } else {
        fail(error, ERROR_FORMAT, "a file without a frame");
    }
    WebPDemuxReleaseIterator(&frame);
    WebPDemuxDelete(demuxer);
    return ok;
}

bool webp_read(const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error) {
    const WebPData data = {(const uint8_t *)video->file.data, video->file.size};
    WebPAnimDecoder *decoder = open_animation(&data, video->width, video->height, error);
    Image image = {0};
    uint8_t *canvas = NULL;
    bool ok = decoder && image_alloc(&image, video->width, video->height, error);
    int done = 0;
    for (int i = 0; ok && done < count; i++) {
        ok = next_canvas(decoder, &canvas, error);
        if (!ok || i != chosen[done]) continue;
        drop_alpha(canvas, &image);
        ok = take(context, done++, &image, error);
    }
    image_free(&image);
    WebPAnimDecoderDelete(decoder);
    return ok;
}

bool webp_decode(Slice file, Image *image, Error *error) {
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) return fail(error, ERROR_UNSUPPORTED, "another version of libwebp");
    if (!read_features(file, &config.input, error) ||
        !image_alloc(image, config.input.width, config.input.height, error))
        return false;
    if (config.input.has_animation) return decode_frame(file, image, error);
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = (WebPRGBABuffer){
        .rgba = image->rgb, .stride = image->width * 3, .size = (size_t)image->width * (size_t)image->height * 3};
    const VP8StatusCode status = WebPDecode((const uint8_t *)file.data, file.size, &config);
    WebPFreeDecBuffer(&config.output);
    return status == VP8_STATUS_OK || fail(error, ERROR_FORMAT, "%s", status_text(status));
}
