// Reads a list of resources from the input, and prints what is wrong with those of KEDA and of the Prometheus operator:
// an object for each, null if nothing is. The packages have the schemas of both projects, in their folder.
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(process.argv[2] + "/node_modules/@kubernetes-models/").href;
const { ScaledObject } = await import(folder + "keda/keda.sh/v1alpha1/ScaledObject.mjs");
const { ServiceMonitor } = await import(
  folder + "prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor.js"
);
const kinds = { ScaledObject, ServiceMonitor };

let text = "";
for await (const part of process.stdin) text += part;
const faults = JSON.parse(text).map((resource) => {
  try {
    new kinds[resource.kind](resource).validate();
    return null;
  } catch (error) {
    return String(error.message);
  }
});
console.log(JSON.stringify(faults));
