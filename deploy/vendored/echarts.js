// What the pages' charts need of Apache ECharts; make.sh bundles it.
import { format, getInstanceByDom, graphic, init, use, version } from "echarts/core";
import { BarChart, CustomChart, LineChart } from "echarts/charts";
import { DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, TooltipComponent } from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

use([
  BarChart,
  CustomChart,
  LineChart,
  DataZoomComponent,
  GridComponent,
  LegendComponent,
  MarkLineComponent,
  TooltipComponent,
  CanvasRenderer,
]);

export { format, getInstanceByDom, graphic, init, version };
