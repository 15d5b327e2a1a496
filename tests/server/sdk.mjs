// node sdk.mjs MODULE URL MODEL: chat, streaming, multi-turn, logprobs and n = 3 with the official SDK.
const [module, baseURL, model] = process.argv.slice(2);
const { default: OpenAI } = await import(module);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
let passed = 0, failed = 0;
const check = (ok, what) => { if (ok) passed++; else { failed++; console.log("FAILED:", what); } };
const messages = [{ role: "user", content: "What is the capital of France? One word." }];
const fixed = { model, messages, max_tokens: 16, temperature: 0 };

const answer = await client.chat.completions.create(fixed);
const text = answer.choices[0].message.content;
check(text.includes("Paris"), `chat: ${text}`);
let joined = "";
for await (const chunk of await client.chat.completions.create({ ...fixed, stream: true })) joined += chunk.choices[0]?.delta?.content ?? "";
check(joined === text, `stream: ${joined}`);
const final = await client.chat.completions.stream(fixed).finalChatCompletion();
check(final.choices[0].message.content === text, "stream helper");
const turns = [...messages, { role: "assistant", content: text }, { role: "user", content: "And of Italy? One word." }];
const second = await client.chat.completions.create({ ...fixed, messages: turns });
check(second.choices[0].message.content.includes("Rom"), "multi-turn");
const scored = await client.chat.completions.create({ ...fixed, logprobs: true, top_logprobs: 3 });
check(scored.choices[0].logprobs.content.every((t) => t.top_logprobs.length === 3), "logprobs");
const three = await client.chat.completions.create({ ...fixed, temperature: 1, seed: 1, n: 3 });
check(three.choices.length === 3 && three.choices.every((c, i) => c.index === i), "n = 3");
const tool = { type: "function", function: { name: "weather", description: "The weather of a city", parameters: { type: "object",
    properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false } } };
const asked = { ...fixed, max_tokens: 60, messages: [{ role: "user", content: "What is the weather in Paris?" }], tools: [tool], tool_choice: "required", parallel_tool_calls: false };
const called = (await client.chat.completions.create(asked)).choices[0];
check(called.finish_reason === "tool_calls" && JSON.parse(called.message.tool_calls[0].function.arguments).city === "Paris", `call: ${JSON.stringify(called)}`);
const streamed = (await client.chat.completions.stream(asked).finalChatCompletion()).choices[0].message;
check(streamed.tool_calls[0].function.arguments === called.message.tool_calls[0].function.arguments, "streamed call");
const history = [...asked.messages, called.message, { role: "tool", tool_call_id: called.message.tool_calls[0].id, content: "31 degrees" }];
check((await client.chat.completions.create({ ...asked, messages: history, tool_choice: "none" })).choices[0].message.content.length > 0, "the answer of a call");
try {
    await client.chat.completions.create({ ...fixed, temperature: 9 });
    check(false, "temperature 9 was accepted");
} catch (error) {
    check(error.status === 400 && error.param === "temperature", `error: ${error}`);
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
