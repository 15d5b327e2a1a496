// The official OpenAI SDK: parse helpers, a tool runner, Responses whole and streamed, errors (chat itself: tests/server/sdk.mjs).
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { capital, check, done, model, refused, url, weather } from "./check.mjs";

const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const chat = { model, temperature: 0, max_tokens: 100 };
const ask = [{ role: "user", content: capital }];
const City = z.object({ name: z.string(), country: z.string(), sights: z.array(z.string()).max(2) });
const Where = z.object({ city: z.enum(["Paris", "Rome"]) });

const format = zodResponseFormat(City, "city");
const about = [{ role: "user", content: "Paris, as JSON with name, country and two sights." }];
const parsed = await client.chat.completions.parse({ ...chat, messages: about, response_format: format });
check(parsed.choices[0].message.parsed.name.includes("Paris"), parsed);
const helper = client.chat.completions.stream({ ...chat, messages: about, response_format: format });
let pieces = "";
helper.on("content.delta", ({ delta }) => { pieces += delta; });
const final = await helper.finalChatCompletion();
check(JSON.stringify(final.choices[0].message.parsed) === JSON.stringify(parsed.choices[0].message.parsed) && pieces === final.choices[0].message.content, final);

const tool = zodFunction({ name: "get_weather", description: "The weather of a city", parameters: Where });
const called = await client.chat.completions.parse({ ...chat, messages: [{ role: "user", content: weather }], tools: [tool], tool_choice: "required", parallel_tool_calls: false });
check(called.choices[0].message.tool_calls[0].function.parsed_arguments.city === "Paris", called);
for (const stream of [false, true]) { // this small model calls again and again where it may
    const asked = [];
    const runner = client.chat.completions.runTools({ ...chat, stream, parallel_tool_calls: false, messages: [{ role: "user", content: weather }], tools: [{ type: "function",
        function: { name: "get_weather", description: "The weather of a city", parameters: z.toJSONSchema(Where), parse: JSON.parse,
            function: (given) => { asked.push(given.city); return "31 degrees, sunny"; } } }] }, { maxChatCompletions: 2 });
    await runner.done();
    const answers = runner.allChatCompletions();
    check(asked[0] === "Paris" && answers.length === 2, `runTools (stream ${stream}): ${asked} ${answers.length}`);
}

const base = { model, temperature: 0, max_output_tokens: 100, store: false };
const whole = await client.responses.create({ ...base, input: capital });
check(whole.output_text.includes("Paris") && whole.status === "completed", whole);
const events = [];
const stream = client.responses.stream({ ...base, input: capital });
for await (const event of stream) events.push(event);
check((await stream.finalResponse()).output_text === whole.output_text, "the stream's response");
check(events.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta).join("") === whole.output_text, "the stream's pieces");
const structured = await client.responses.parse({ ...base, input: about[0].content, text: { format: zodTextFormat(City, "city") } });
check(structured.output_parsed.name.includes("Paris"), structured);
const functions = { ...base, tools: [zodResponsesFunction({ name: "get_weather", description: "The weather of a city", parameters: Where })] };
const call = (await client.responses.parse({ ...functions, input: weather, tool_choice: "required" })).output[0];
check(call.type === "function_call" && call.parsed_arguments.city === "Paris", call);
const after = await client.responses.create({ ...functions, tool_choice: "none", input: [{ role: "user", content: weather },
    { type: "function_call", call_id: call.call_id, name: call.name, arguments: call.arguments }, { type: "function_call_output", call_id: call.call_id, output: "31 degrees, sunny" }] });
check(/31|sunny/i.test(after.output_text), after);

check((await client.completions.create({ model, prompt: "def add(a, b):", max_tokens: 12, temperature: 0 })).choices[0].text.includes("return"), "completions");
const names = [];
for await (const one of client.models.list()) names.push(one.id);
check(names.join() === model, names);
await refused(() => client.chat.completions.create({ ...chat, messages: ask, model: "other" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found", "another model");
await refused(() => client.chat.completions.create({ ...chat, messages: [] }), (e) => e instanceof OpenAI.BadRequestError && e.param === "messages" && e.requestID, "no messages");
await refused(() => client.responses.create({ ...base, input: capital, temperature: 9 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature", "temperature 9");
await refused(() => client.chat.completions.parse({ ...chat, messages: about, response_format: format, max_tokens: 4 }), (e) => e.name === "LengthFinishReasonError" || /length/i.test(String(e)), "an answer that is cut");
done();
