// Reads a gzipped profile with npm's pprof-format, and prints its totals, files and functions as JSON.
//
// usage: NODE_PATH=… node totals.js PROFILE
const fs = require("node:fs");
const zlib = require("node:zlib");
const { Profile } = require("pprof-format");

const profile = Profile.decode(zlib.gunzipSync(fs.readFileSync(process.argv[2])));
const text = (index) => profile.stringTable.strings[Number(index)];
const sum = (column) => profile.sample.reduce((all, sample) => all + Number(sample.value[column]), 0);
console.log(
  JSON.stringify({
    totals: Object.fromEntries(profile.sampleType.map((type, column) => [text(type.type), sum(column)])),
    files: profile.mapping.map((mapping) => text(mapping.filename)),
    functions: profile.function.map((each) => text(each.name)),
  }),
);
