#!/usr/bin/env python3
"""Audio files for tests/media/audio, and what libsndfile, libsoxr and transformers make of them.

    python3 tests/media/make_audio.py    # needs numpy, soundfile, soxr, transformers 5.23

goldens.json: files {NAME: {count, every, values}} are samples at 16 kHz of one channel, each `every`-th of them;
spectrograms {KIND: [{samples, frames, every, values}]} are those of signal(samples), flattened.
"""

import io
import json
import struct
from pathlib import Path

import numpy as np
import soundfile
import soxr
from transformers.models.gemma3n.feature_extraction_gemma3n import Gemma3nAudioFeatureExtractor
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor

FOLDER = Path(__file__).parent / "audio"
VALUES = 97


def signal(count, seed=1):
    """Noise of splitmix64 whose loudness rises and falls, with silence in between; test_audio.c has the same."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    noise = (z >> np.uint64(48)).astype(np.int64) - 32768
    loud = (np.arange(count) // 400) % 5
    return (noise * loud / (4 * 32768)).astype(np.float32)


def tone(rate, channels, seconds=0.2):
    """A rising tone; the second channel has another one."""
    t = np.arange(round(rate * seconds)) / rate
    both = [0.5 * np.sin(2 * np.pi * (200 + 1500 * k + 2000 * t) * t) for k in range(channels)]
    return np.stack(both, axis=1)


def sampled(values):
    every = max(1, len(values) // VALUES)
    return {"every": every, "values": [float(f"{v:.9g}") for v in values[::every]]}


def expected(data, own):
    """As transformers' load_audio with soundfile: decode, average, resample. own: samples of what it cannot read."""
    if own is not None:
        return {"count": len(own), **sampled(own)}
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    if rate != 16000:
        mono = soxr.resample(mono, rate, 16000, quality="HQ")
    return {"count": len(mono), **sampled(mono)}


def wav(samples, rate, form, subtype):
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form, subtype=subtype)
    return out.getvalue()


def chunk(name, data):
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def files():
    for rate in (8000, 16000, 22050, 44100, 48000):
        for channels in (1, 2):
            yield f"{rate}-{channels}.wav", wav(tone(rate, channels), rate, "WAV", "PCM_16")
    one = tone(16000, 1)
    for kind in ("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW"):
        yield f"{kind.lower()}.wav", wav(one, 16000, "WAV", kind)
    yield "extensible.wav", wav(tone(16000, 2), 16000, "WAVEX", "PCM_16")
    yield "rf64.wav", wav(one, 16000, "RF64", "PCM_16")
    own = (one[:, 0] * 32767).astype("<i2")
    pcm, own = own.tobytes(), own.astype(np.float32) / 32768
    head = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16))
    odd = chunk(b"LIST", b"INFOIART\3\0\0\0abc\0x")
    yield (
        "odd-chunks.wav",
        b"RIFF\0\0\0\0WAVE" + odd + head + chunk(b"fact", b"\1\2\3") + chunk(b"data", pcm) + odd,
        own,
    )
    for name, size in (("zero", 0), ("streamed", 0xFFFFFFFF)):
        yield (
            f"{name}-size.wav",
            b"RIFF" + struct.pack("<I", size) + b"WAVE" + head + b"data" + struct.pack("<I", size) + pcm,
            own,
        )
    for rate in (16000, 44100):
        for channels in (1, 2):
            both = tone(rate, channels)
            yield f"{rate}-{channels}.mp3", wav(both, rate, "MP3", "MPEG_LAYER_III")
            yield f"{rate}-{channels}.flac", wav(both, rate, "FLAC", "PCM_16")
            yield f"{rate}-{channels}.ogg", wav(both, rate, "OGG", "VORBIS")
    yield "24-bit.flac", wav(tone(96000, 1, 0.05), 96000, "FLAC", "PCM_24")
    for channels in (1, 2):
        yield f"48000-{channels}.opus", wav(tone(48000, channels), 48000, "OGG", "OPUS")


def spectrogram(extractor, count):
    found = extractor([signal(count)], return_tensors="np")
    mask = np.asarray(found["input_features_mask"][0], bool)
    rows = np.asarray(found["input_features"][0])[mask]
    return {"samples": count, "frames": len(rows), **sampled(rows.reshape(-1))}


def main():
    FOLDER.mkdir(exist_ok=True)
    goldens = {"files": {}, "spectrograms": {}}
    for name, data, *own in files():
        (FOLDER / name).write_bytes(data)
        goldens["files"][name] = expected(data, own[0] if own else None)
    lengths = {"gemma4": (161, 800, 1600, 16000, 33333), "gemma3n": (600, 800, 1600, 16000, 33333)}
    for kind, extractor in (("gemma4", Gemma4AudioFeatureExtractor()), ("gemma3n", Gemma3nAudioFeatureExtractor())):
        goldens["spectrograms"][kind] = [spectrogram(extractor, count) for count in lengths[kind]]
    (FOLDER / "goldens.json").write_text(json.dumps(goldens, indent=0).replace("\n", " ").replace("}, ", "},\n") + "\n")


if __name__ == "__main__":
    main()
