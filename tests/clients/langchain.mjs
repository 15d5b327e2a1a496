// LangChain for JavaScript: chat, stream, tools and their answers, structured output, Responses, errors.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { capital, check, done, model, refused, url, weather } from "./check.mjs";

const City = z.object({ name: z.string(), country: z.string() });
const getWeather = tool(async ({ city }) => `31 degrees and sunny in ${city}`, { name: "get_weather", description: "The weather of a city", schema: z.object({ city: z.enum(["Paris", "Rome"]) }) });
for (const useResponsesApi of [false, true]) {
    const way = useResponsesApi ? "Responses" : "chat";
    const chat = new ChatOpenAI({ model, temperature: 0, maxTokens: 100, maxRetries: 0, apiKey: "none", useResponsesApi, configuration: { baseURL: url + "/v1" } });
    const whole = await chat.invoke(capital);
    check(whole.text.includes("Paris") && whole.usage_metadata.output_tokens > 0, [way, whole]);
    let pieces = "", used = 0;
    for await (const chunk of await chat.stream(capital)) { pieces += chunk.text; used += chunk.usage_metadata?.output_tokens ?? 0; }
    check(pieces === whole.text && used === whole.usage_metadata.output_tokens, `${way}: ${pieces} ${used}`);
    const bound = chat.bindTools([getWeather], { tool_choice: "required", parallel_tool_calls: false });
    const called = await bound.invoke(weather);
    check(called.tool_calls[0]?.args.city === "Paris", [way, called]);
    let joined;
    for await (const chunk of await bound.stream(weather)) joined = joined ? joined.concat(chunk) : chunk;
    check(joined.tool_calls[0]?.args.city === "Paris", [way, joined]);
    const result = await getWeather.invoke(called.tool_calls[0]);
    check(result instanceof ToolMessage, result);
    const after = await chat.invoke([new HumanMessage(weather), called, result]);
    check(/31|sunny/i.test(after.text), [way, after]);
    for (const method of ["jsonSchema", "functionCalling"]) {
        const city = await chat.withStructuredOutput(City, { method, name: "city" }).invoke("Paris, as JSON with name and country.");
        check(city.name.includes("Paris"), [way, method, city]);
    }
    await refused(() => new ChatOpenAI({ model: "other", maxRetries: 0, apiKey: "none", useResponsesApi, configuration: { baseURL: url + "/v1" } }).invoke(capital), (e) => e.status === 404, `${way}: another model`);
    await refused(() => new ChatOpenAI({ model, temperature: 9, maxRetries: 0, apiKey: "none", useResponsesApi, configuration: { baseURL: url + "/v1" } }).invoke(capital), (e) => e.status === 400, `${way}: temperature 9`);
}
done();
