// Vercel's AI SDK by three ways (a compatible provider, OpenAI's chat, OpenAI's Responses): text, stream, tools, objects, errors.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { capital, check, done, model, refused, url, weather } from "./check.mjs";

const compatible = createOpenAICompatible({ name: "apus", baseURL: url + "/v1", includeUsage: true, supportsStructuredOutputs: true });
const openai = createOpenAI({ baseURL: url + "/v1", apiKey: "none" });
const City = z.object({ name: z.string(), country: z.string() });
const tools = { get_weather: tool({ description: "The weather of a city", inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }), execute: async () => "31 degrees, sunny" }) };
for (const [way, by] of [["compatible", compatible], ["chat", openai.chat], ["responses", openai.responses]]) {
    const base = { model: by(model), temperature: 0, maxOutputTokens: 100, maxRetries: 0 };
    const whole = await generateText({ ...base, prompt: capital });
    check(whole.text.includes("Paris") && whole.finishReason === "stop" && whole.usage.outputTokens > 0, [way, whole.text, whole.usage]);
    const stream = streamText({ ...base, prompt: capital, onError: ({ error }) => check(false, `${way}: ${error}`) });
    let pieces = "";
    for await (const piece of stream.textStream) pieces += piece;
    check(pieces === whole.text && (await stream.usage).outputTokens === whole.usage.outputTokens, [way, pieces, await stream.usage]);
    const round = await generateText({ ...base, prompt: weather, tools, stopWhen: stepCountIs(3), prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }) });
    check(round.steps[0].toolCalls[0].input.city === "Paris" && /31|sunny/i.test(round.text), [way, round.steps.length, round.text]);
    const streamed = streamText({ ...base, prompt: weather, tools, toolChoice: "required" });
    const calls = [];
    for await (const part of streamed.fullStream) if (part.type === "tool-call") calls.push(part);
    check(calls[0]?.input.city === "Paris" && (await streamed.finishReason) === "tool-calls", [way, calls]);
    const prompt = "Paris, as JSON with name and country.";
    const object = await generateText({ ...base, prompt, output: Output.object({ schema: City }) });
    check(object.output.name.includes("Paris"), [way, object.output]);
    const partial = streamText({ ...base, prompt, output: Output.object({ schema: City }) });
    let last;
    for await (const value of partial.partialOutputStream) last = value;
    check(JSON.stringify(last) === JSON.stringify(object.output), [way, last]);
    await refused(() => generateText({ ...base, prompt: capital, model: by("other") }), (e) => APICallError.isInstance(e) && e.statusCode === 404, `${way}: another model`);
    await refused(() => generateText({ ...base, prompt: capital, temperature: 9 }), (e) => APICallError.isInstance(e) && e.statusCode === 400 && /temperature/.test(e.message), `${way}: temperature 9`);
}
done();
