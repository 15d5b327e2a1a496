/* Images, audio and videos of a prompt: from the content parts of messages to what the engine takes. Threads: any. */
#pragma once
#include "chat/chat_model.h"
#include "chat/message.h"
#include "media/image_views.h"

enum {
    IMAGES_MAX = 64, /* images of a request */
    CLIPS_MAX = 16,  /* clips of audio of a request */
    VIDEOS_MAX = 4,  /* videos of a request */
};

/* An image, a clip of audio or a video. */
typedef struct PromptPart {
    ContentKind kind;
    ImageDivision division; /* views of an image; of a frame of a video the only one */
    int tokens;             /* tokens of a clip */
    int frames, groups;     /* frames of a video that are taken; groups of them, each of which has rows of its own */
    double seconds;         /* length of a video */
    double *times;          /* [groups] seconds, as the prompt tells them */
} PromptPart;

/* Arrays of the caller's arena; the items are references. */
typedef struct PromptMedia {
    int count;
    PromptPart *parts; /* [count] in the order of the messages */
    int image_count, clip_count, video_count;
    int audio_tokens; /* tokens of all clips */
    int item_count;
    MediaItem **items; /* [item_count] of the first part: views, a clip, or groups of frames; of the second part … */
    int span_count;
    MediaSpan *spans;      /* [span_count] */
    uint64_t *content_ids; /* [tokens of the prompt]; NULL without images and audio */
    int32_t *positions;    /* [POSITION_DIMS_MAX][tokens]; NULL: those of the cache */
    int position_offset;
    const ChatMedia *refused; /* after an error: the part that was the reason; NULL: none */
    ContentKind refused_kind;
} PromptMedia;

void prompt_media_close(PromptMedia *media); /* releases the items; safe on a zeroed one */

/* Sets the members of a request that are about images and audio. */
void prompt_media_request(const PromptMedia *media, RequestOptions *request);

/* Whether the model takes such parts. */
bool prompt_media_takes(const ChatModel *model, ContentKind kind);
/* Decodes the images, the audio and the videos of the messages, in their order. Errors: ERROR_UNSUPPORTED where the
 * model or the format takes none, those of image_decode(), audio_decode() and video_open(), ERROR_LIMIT for more tokens
 * than the context has; media->refused is set. */
NODISCARD bool prompt_media_open(PromptMedia *media, const ChatModel *model, const ChatMessage *messages,
    size_t message_count, Arena *arena, Error *error);
/* The token of an image's rows. The model takes images. */
const char *prompt_media_image_token(const ChatModel *model);
/* What replaces the placeholder of a video, in the arena. */
NODISCARD bool prompt_media_video_text(
    const VideoSpec *spec, const PromptPart *part, Arena *arena, Slice *text, Error *error);
/* Replaces each placeholder that the template has written by the tokens of its part. *spans and *count: the
 * rendered prompt, in the arena afterwards. ERROR_UNSUPPORTED: the template has written another number of placeholders.
 */
NODISCARD bool prompt_media_expand(
    const PromptMedia *media, const ChatModel *model, Span **spans, size_t *count, Arena *arena, Error *error);
/* Finds the images and clips in the prompt; sets content ids and positions. */
NODISCARD bool prompt_media_place(
    PromptMedia *media, const ChatModel *model, const Tokens *prompt, Arena *arena, Error *error);
/* RoPE positions (M-RoPE) of a prompt, [POSITION_DIMS_MAX][tokens]: text counts on in all dimensions; the rows of an
 * image have those of their grid, counted from the position at which it begins; so have those of a video's frames,
 * which share one grid, with their times. Returns RequestOptions.position_offset. Reference: get_rope_index() of
 * transformers' models/qwen3_vl. */
int prompt_media_positions(const MediaSpan *spans, int count, int tokens, int32_t *positions);
