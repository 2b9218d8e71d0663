// The order of the site's search results. Headings of guides go before names in the API, such as the module
// question_answering. The numbers are Sphinx's own.
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    score >= Scorer.title && !page.startsWith("generated/") ? score + 12 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
